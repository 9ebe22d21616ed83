/* The vote for clocks: without it a DSP runs at its lowest clock and wakes up late. */
#ifndef NPURT_POWER_H
#define NPURT_POWER_H

/* Ask for speed as *client*; 1 when all of it was accepted, 0 when the DSP refused or cannot. */
int power_vote(void *client);

/* Take the vote back. */
void power_withdraw(void *client);

#endif
