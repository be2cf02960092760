/* A wall clock that is shifted by the nanoseconds in the file named by LAB_CLOCK_FILE, which may change at any moment.
 *
 * Preloaded. Monotonic clocks are left alone, so sleeping and measuring stay right: libfaketime 0.9.10, told to do the
 * same, makes every clock_nanosleep fail. Deadlines that a program has computed from the false clock are set right
 * before they are waited for.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL
static const volatile int64_t *shift;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("LAB_CLOCK_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED) shift = found;
}

static void move(struct timespec *at, int sign) {
    if (!shift) return;
    int64_t ns = (int64_t)at->tv_sec * NS + at->tv_nsec + sign * *shift;
    at->tv_sec = ns / NS;
    at->tv_nsec = ns % NS;
}

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real ? real(clock, at) : (int)syscall(SYS_clock_gettime, clock, at);
    if (answer == 0 && is_wall(clock)) move(at, 1);
    return answer;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) {
        at->tv_sec = now.tv_sec;
        at->tv_usec = now.tv_nsec / 1000;
    }
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

/* A deadline this large is by the wall clock: since boot it would be thirty years. */
static struct timespec true_deadline(const struct timespec *at) {
    struct timespec moved = *at;
    if (moved.tv_sec > 1000000000) move(&moved, -1);
    return moved;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *at, struct timespec *rest) {
    static int (*real)(clockid_t, int, const struct timespec *, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_nanosleep");
    struct timespec moved = *at;
    if ((flags & TIMER_ABSTIME) && is_wall(clock)) move(&moved, -1);
    return real(clock, flags, &moved, rest);
}

int sem_timedwait(sem_t *sem, const struct timespec *at) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec moved = true_deadline(at);
    return real(sem, &moved);
}

int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *at) {
    static int (*real)(pthread_mutex_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    struct timespec moved = true_deadline(at);
    return real(mutex, &moved);
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *at) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec moved = true_deadline(at);
    return real(cond, mutex, &moved);
}
