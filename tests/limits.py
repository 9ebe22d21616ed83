"""How long tests wait for what must happen: until it does, or has hung beyond doubt.

No test decides by these whether something is right or fast enough.  A machine under load takes many
times as long as an idle one, and nothing is lost by waiting longer for what comes anyway.
"""

HANG_SECONDS = 600
