/* The vote for clocks.  Without a vote, a DSP runs at its lowest clock and wakes up slowly. */
#ifndef NPURT_POWER_H
#define NPURT_POWER_H

/* Vote for full speed as `client`; return 1 if the DSP accepted all requests, else 0. */
int power_vote(void *client);

/* Withdraw the vote. */
void power_withdraw(void *client);

#endif
