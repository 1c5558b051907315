// A preloaded library that makes a file system misbehave for files whose path holds HOSTILE_PATH.
// HOSTILE_MODE: "no_locks" (every lock fails), "slow" (every access takes 20 ms), "full" (nothing can be written).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int is_mode(const char *mode) {
    const char *set = getenv("HOSTILE_MODE");
    return set != NULL && strcmp(set, mode) == 0;
}

static int is_meant(int descriptor) {
    char link[64], target[4096];
    const char *part = getenv("HOSTILE_PATH");
    if (part == NULL) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length <= 0) return 0;
    target[length] = '\0';
    return strstr(target, part) != NULL;
}

static void be_slow(int descriptor) {
    if (is_mode("slow") && is_meant(descriptor)) {
        struct timespec pause = {0, 20 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
}

static int is_lock(int command) {
    return command == F_SETLK || command == F_SETLKW || command == F_GETLK || command == F_OFD_SETLK ||
           command == F_OFD_SETLKW || command == F_OFD_GETLK;
}

#define LOCKS(name)                                                          \
    int name(int descriptor, int command, ...) {                             \
        static int (*real)(int, int, ...);                                   \
        va_list more;                                                        \
        va_start(more, command);                                             \
        void *argument = va_arg(more, void *);                               \
        va_end(more);                                                        \
        if (real == NULL) real = (int (*)(int, int, ...))dlsym(RTLD_NEXT, #name); \
        if (is_lock(command) && is_meant(descriptor)) {                      \
            be_slow(descriptor);                                             \
            if (is_mode("no_locks")) {                                       \
                errno = ENOLCK;                                              \
                return -1;                                                   \
            }                                                                \
        }                                                                    \
        return real(descriptor, command, argument);                          \
    }
LOCKS(fcntl)
LOCKS(fcntl64)

int flock(int descriptor, int operation) {
    static int (*real)(int, int);
    if (real == NULL) real = (int (*)(int, int))dlsym(RTLD_NEXT, "flock");
    be_slow(descriptor);
    if (is_mode("no_locks") && is_meant(descriptor)) {
        errno = ENOLCK;
        return -1;
    }
    return real(descriptor, operation);
}

#define READS(name, offset_type)                                                       \
    ssize_t name(int descriptor, void *bytes, size_t count, offset_type offset) {      \
        static ssize_t (*real)(int, void *, size_t, offset_type);                      \
        if (real == NULL) real = (ssize_t(*)(int, void *, size_t, offset_type))dlsym(RTLD_NEXT, #name); \
        be_slow(descriptor);                                                           \
        return real(descriptor, bytes, count, offset);                                 \
    }
READS(pread, off_t)
READS(pread64, off64_t)

#define WRITES(name, offset_type)                                                       \
    ssize_t name(int descriptor, const void *bytes, size_t count, offset_type offset) { \
        static ssize_t (*real)(int, const void *, size_t, offset_type);                 \
        if (real == NULL) real = (ssize_t(*)(int, const void *, size_t, offset_type))dlsym(RTLD_NEXT, #name); \
        be_slow(descriptor);                                                            \
        if (is_mode("full") && is_meant(descriptor)) {                                  \
            errno = ENOSPC;                                                             \
            return -1;                                                                  \
        }                                                                               \
        return real(descriptor, bytes, count, offset);                                  \
    }
WRITES(pwrite, off_t)
WRITES(pwrite64, off64_t)
