/* Makes a share of all syncs slow, as a busy disk does: preload it into a process.
   SLOW_SYNC_PERCENT says how many of 100 wait, each for 0.3 to 2 seconds. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void wait_perhaps(void)
{
    static __thread unsigned int seed;
    const char *percent = getenv("SLOW_SYNC_PERCENT");
    struct timespec now;

    if (seed == 0) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        seed = (unsigned int)now.tv_nsec ^ (unsigned int)getpid() | 1u;
    }
    if (percent && rand_r(&seed) % 100 < atoi(percent))
        usleep(300000 + rand_r(&seed) % 1700000);
}

int fsync(int descriptor)
{
    wait_perhaps();
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(descriptor);
}

int fdatasync(int descriptor)
{
    wait_perhaps();
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(descriptor);
}
