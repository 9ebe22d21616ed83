/* Votes for clocks.  The DSP may refuse a vote of an unsigned domain, which then runs slower. */
#include "power.h"
#include "hap.h"

enum { WAKE_UP_US = 100 };

static int set(void *client, HAP_power_request_t *request)
{
    return HAP_power_set != NULL && HAP_power_set(client, request) == 0;
}

static int set_class(void *client)
{
    HAP_power_request_t request = {
        .type = HAP_POWER_SET_APPTYPE,
        .apptype = HAP_POWER_COMPUTE_CLIENT_CLASS,
    };
    return set(client, &request);
}

static int set_clocks(void *client, uint8_t option, uint8_t corner)
{
    HAP_clock_params params = {corner, corner, corner, 0, {0}};
    HAP_power_request_t request = {
        .type = HAP_POWER_SET_DCVS_V3,
        .dcvs_v3 =
            {
                .set_dcvs_enable = 1,
                .dcvs_enable = 1,
                .dcvs_option = option,
                .set_latency = 1,
                .latency = corner == HAP_DCVS_VCORNER_DISABLE ? UINT16_MAX : WAKE_UP_US,
                .set_core_params = 1,
                .core_params = params,
                .set_bus_params = 1,
                .bus_params = params,
            },
    };
    return set(client, &request);
}

static int set_hvx(void *client, uint8_t on)
{
    HAP_power_request_t request = {.type = HAP_POWER_SET_HVX, .hvx_power_up = on};
    return set(client, &request);
}

int power_vote(void *client)
{
    int accepted = set_class(client);
    accepted &= set_clocks(client, HAP_DCVS_V2_PERFORMANCE_MODE, HAP_DCVS_VCORNER_MAX);
    accepted &= set_hvx(client, 1);
    return accepted;
}

/* The results are not used: a vote that stays costs power only, and ends with the process. */
void power_withdraw(void *client)
{
    set_hvx(client, 0);
    set_clocks(client, HAP_DCVS_V2_ADJUST_UP_DOWN, HAP_DCVS_VCORNER_DISABLE);
}
