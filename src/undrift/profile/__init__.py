"""Where the time of a round goes: a trace for a viewer, and figures taken from it.

    from undrift.profile import Profile

    with Profile("profile.json") as profile:
        ud.simulate("fedhbm", "mlp", "digits", callbacks=[profile])
    profile.figures.parts

On the command line: ``undrift run --profile``.
"""

from undrift.profile.take import SKIPPED as SKIPPED
from undrift.profile.take import Figures as Figures
from undrift.profile.take import Profile as Profile
from undrift.profile.trace import Spent as Spent
