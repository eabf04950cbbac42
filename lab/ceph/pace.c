/* Paces the writes of a program that uses libaio, as one device of a given speed would: preloaded into an OSD.
 *
 * The device below is much faster, so that an operation that the kernel reports as done has only just begun as far as the
 * program is told: it is held until a device that serves one write after the other would be done with it. The file that
 * PACE_FILE names holds two 64-bit numbers, which may be changed at any time: the speed in bytes per second, 0 to let
 * everything pass, and what each write takes beside its bytes, in nanoseconds, 0 for what flash takes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { OP_PWRITE = 1, OP_PWRITEV = 8, HELD_MOST = 4096 };
/* What a write takes on flash beside its bytes, and a flush on any device, in seconds. */
static const double FLASH_EACH = 100e-6, FLUSH = 500e-6;

/* As the kernel has it, up to what is read here. */
struct request { void *data; uint32_t key, flags; uint16_t op; };
struct event { void *data; struct request *request; int64_t result, more; };
typedef int get_events(void *, long, long, struct event *, struct timespec *);

static const volatile uint64_t *speed, *each_ns;
static get_events *next_get_events;
static int (*next_fdatasync)(int);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double free_at; /* when the device is done with everything so far */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static struct timespec span(double seconds)
{
    if (seconds < 0) seconds = 0;
    struct timespec t = { (time_t)seconds, 0 };
    t.tv_nsec = (long)((seconds - t.tv_sec) * 1e9);
    return t;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("PACE_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *page = mmap(NULL, 2 * sizeof(uint64_t), PROT_READ, MAP_SHARED, file, 0);
        if (page != MAP_FAILED) {
            speed = page;
            each_ns = speed + 1;
        }
        close(file);
    }
    void *aio = dlopen("libaio.so.1", RTLD_NOW);
    if (aio) {
        next_get_events = (get_events *)dlvsym(aio, "io_getevents", "LIBAIO_0.4");
        if (!next_get_events) next_get_events = (get_events *)dlsym(aio, "io_getevents");
    }
    next_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
}

/* When the device is done with this one. */
static double due(const struct event *event, double at)
{
    uint16_t op = event->request->op;
    if ((op != OP_PWRITE && op != OP_PWRITEV) || event->result <= 0) return at;
    uint64_t bytes_per_s = *speed;
    if (!bytes_per_s) return at;
    double each = *each_ns ? *each_ns * 1e-9 : FLASH_EACH;
    pthread_mutex_lock(&lock);
    if (free_at < at) free_at = at;
    free_at += each + (double)event->result / (double)bytes_per_s;
    double done = free_at;
    pthread_mutex_unlock(&lock);
    return done;
}

/* Each context of a program is asked by one thread: what is held is its own, and in order. */
static __thread struct { struct event event; double due; } *held;
static __thread int first, count;

int io_getevents(void *context, long least, long most, struct event *events, struct timespec *timeout)
{
    if (!speed) return next_get_events(context, least, most, events, timeout);
    if (!held && !(held = calloc(HELD_MOST, sizeof *held))) abort();
    double end = timeout ? now() + timeout->tv_sec + timeout->tv_nsec * 1e-9 : 1e18;
    for (;;) {
        double at = now();
        int given = 0;
        while (count && given < most && held[first].due <= at) {
            events[given++] = held[first].event;
            first = (first + 1) % HELD_MOST;
            count--;
        }
        if (given) return given;
        if (at >= end) return 0;
        double until = count && held[first].due < end ? held[first].due : end;
        struct timespec wait = span(until - at > 1 ? 1 : until - at);
        struct event come[64];
        int room = HELD_MOST - count < 64 ? HELD_MOST - count : 64;
        if (!room) {
            nanosleep(&wait, NULL);
            continue;
        }
        int n = next_get_events(context, 1, room, come, &wait);
        if (n < 0 && !count) return n;
        at = now();
        for (int i = 0; i < n; i++) {
            int place = (first + count++) % HELD_MOST;
            held[place].event = come[i];
            held[place].due = due(&come[i], at);
            /* What needs no time does not overtake: a device that is busy is busy for it, too. */
        }
    }
}

int fdatasync(int file)
{
    if (speed && *speed) {
        struct timespec wait = span(FLUSH);
        nanosleep(&wait, NULL);
    }
    return next_fdatasync(file);
}
