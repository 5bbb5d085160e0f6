/* Preloaded into geofold (tests/security/leaving.rs): makes a process exit while its threads are ending, always and not
 * once in thousands of times. A thread that ends is held up at each lock it takes to write, and the process before and
 * after what else it does on exit; OpenSSL takes such locks in both places. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { BEFORE_US = 50000, HELD_UP_US = 100000, AFTER_US = 400000 };

static int (*take)(pthread_rwlock_t *);
static pthread_key_t key; /* before any of OpenSSL's, so that it is destroyed first */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread int ending;

static void end(void *unused) { (void)unused, ending = 1; }
static void before(void) { usleep(BEFORE_US); }
static void after(void) { usleep(AFTER_US); }
static void wait_before(void) { atexit(before); }

__attribute__((constructor)) static void begin(void) {
  take = dlsym(RTLD_NEXT, "pthread_rwlock_wrlock");
  pthread_key_create(&key, end);
  atexit(after); /* the first to be registered is the last to be called */
}

int pthread_rwlock_wrlock(pthread_rwlock_t *lock) {
  if (ending) {
    usleep(HELD_UP_US);
  } else {
    pthread_setspecific(key, &key);
  }
  return take(lock);
}

/* The first connection: OpenSSL has registered by now what it does on exit, and what is registered later is called sooner. */
void *SSL_new(void *context) {
  void *(*make)(void *) = dlsym(RTLD_NEXT, "SSL_new");
  pthread_once(&once, wait_before);
  return make(context);
}
