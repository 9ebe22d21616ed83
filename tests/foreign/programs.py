"""Build programs of others with this project's compiler, which has Linux's headers."""

import os
import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from npurt.build import host
from npurt.build_zig import Arg, Job, Stamp, objects, whole, write, zig

FLAGS = ("-g0", "-w", "-std=gnu11", "-D_GNU_SOURCE", "-fno-sanitize=all")


def build(source: Path, library: Sequence[Job], mains: Sequence[Job]) -> Path:
    """Build a program of each file of *mains*, with all files of *library*; return their folder.

    A program with unchanged sources is not built again.  *source* is the folder of all sources.

    Raises:
        BuildError: It does not compile.
    """
    out = source.with_name(f"{source.name}.built")
    # The package of libdrm has Linux's headers in a separate folder.
    write(out / "include/libdrm/drm.h", "#include <drm/drm.h>\n")
    headers = (f"-I{out / 'include'}", f"-I{out / 'include/libdrm'}")
    flags: list[Arg] = [*FLAGS, *headers, "-target", f"{host()}-linux-gnu.2.34"]
    jobs = [Job(job.source, (*flags, *job.flags)) for job in (*library, *mains)]
    settings = "\n".join(shlex.join(map(str, (job.source, *job.flags))) for job in jobs)
    stamp = Stamp(source.name, [*source.rglob("*.[ch]"), Path(__file__)], settings)
    if stamp.made() is None:
        folder = out / "objects"
        folder.mkdir(parents=True, exist_ok=True)
        made = objects(jobs, folder)
        common = made[: len(library)]

        def link(main: Job, compiled: Path) -> Path:
            with whole(out / main.source.stem) as partial:
                zig("cc", *flags, compiled, *common, "-lm", "-lpthread", "-o", partial)
            return out / main.source.stem

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            stamp.record(list(pool.map(link, mains, made[len(library) :])))
    return out
