/*
 * The nodes as files: what stat, access and a listing of their folder say.
 *
 * Enough for a program that looks for a node before it opens it.  A listing made inside the C
 * library (glob, scandir, nftw) does not come here.
 */
#include "sim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>
