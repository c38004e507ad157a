/* SPDX-License-Identifier: Apache-2.0
 *
 * The common part of all emulated libraries. At the first call, it finds or starts Python.
 *
 * This file is not linked with Python, and needs none of Python's headers: it looks up Python's
 * functions in the process. The process of a Python interpreter contains these functions, whether
 * libpython is linked statically or dynamically. In a C program, this file loads the shared library
 * of the interpreter that built the emulated library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#define EXPORTED __attribute__((visibility("default"), used))

static const char cm_file[] = CM_FILE;
static const char cm_executable[] = CM_EXECUTABLE;
static const char cm_start_code[] = CM_START_CODE;
static const char cm_exit_code[] = CM_EXIT_CODE;
static const char *const cm_python_libraries[] = {CM_PYTHON_LIBRARIES};

/* The functions of Python that this library uses, besides those in cm_start_python. All except
 * PyGILState_Check and PyRun_SimpleString are in Python's stable ABI. */
static struct {
    int (*Py_IsInitialized)(void);
    void (*Py_InitializeEx)(int);
    int (*PyGILState_Ensure)(void);
    void (*PyGILState_Release)(int);
    int (*PyGILState_Check)(void);
    void *(*PyEval_SaveThread)(void);
    int (*PyRun_SimpleString)(const char *);
    void (*PyOS_BeforeFork)(void);
    void (*PyOS_AfterFork_Parent)(void);
    void (*PyOS_AfterFork_Child)(void);
} cm_python;

/* A thread that holds this mutex never waits for the GIL, because the holder of the GIL may wait
 * for this mutex. */
static pthread_mutex_t cm_mutex = PTHREAD_MUTEX_INITIALIZER;
/* Guarded by the mutex: the number of threads in cm_fill. The condition is signalled when a thread
 * has left cm_fill. */
static int cm_starting;
static pthread_cond_t cm_over = PTHREAD_COND_INITIALIZER;
/* Guarded by the mutex: 0 before the first call, 1 if Python is loaded, -1 if the load failed. */
static int cm_loaded;
/* Whether this library started Python. */
static int cm_started;
/* 1: Python has filled cm_table with the emulation's functions. -1: Python could not fill it.
 * 0: neither. */
static atomic_int cm_ready;

static void cm_complain(const char *what, const char *why)
{
    fprintf(stderr, "crossmem: the emulated %s cannot work: %s%s\n", cm_file, what, why);
}

static int cm_look_up(void *handle)
{
    const struct {
        const char *name;
        void *place;
    } wanted[] = {
        {"Py_IsInitialized", &cm_python.Py_IsInitialized},
        {"Py_InitializeEx", &cm_python.Py_InitializeEx},
        {"PyGILState_Ensure", &cm_python.PyGILState_Ensure},
        {"PyGILState_Release", &cm_python.PyGILState_Release},
        {"PyGILState_Check", &cm_python.PyGILState_Check},
        {"PyEval_SaveThread", &cm_python.PyEval_SaveThread},
        {"PyRun_SimpleString", &cm_python.PyRun_SimpleString},
        {"PyOS_BeforeFork", &cm_python.PyOS_BeforeFork},
        {"PyOS_AfterFork_Parent", &cm_python.PyOS_AfterFork_Parent},
        {"PyOS_AfterFork_Child", &cm_python.PyOS_AfterFork_Child},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = dlsym(handle, wanted[i].name);
        if (!found) {
            cm_complain("this Python lacks ", wanted[i].name);
            return 0;
        }
        memcpy(wanted[i].place, &found, sizeof found);
    }
    return 1;
}

static void *cm_open_python(void)
{
    char reasons[2048] = "";
    for (size_t i = 0; cm_python_libraries[i]; i++) {
        void *handle = dlopen(cm_python_libraries[i], RTLD_NOW | RTLD_GLOBAL);
        if (handle)
            return handle;
        size_t used = strlen(reasons);
        snprintf(reasons + used, sizeof reasons - used, "\n  %s", dlerror());
    }
    cm_complain("a program that is not Python needs the shared library of the Python that "
                "crossmem is installed in. Install it (Debian: libpython3.x), or use a Python "
                "that was configured with --enable-shared. Tried:", reasons);
    return NULL;
}

/* If a thread were cancelled while it holds the GIL or another lock, the other threads would
 * deadlock. So a thread cannot be cancelled before the end of its call. */
static inline int cm_shield(void)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void cm_unshield(int before)
{
    pthread_setcancelstate(before, NULL);
}

/* Runs the functions that are registered with Python's atexit, such as the flush of logs. Python
 * is not finalised, because destructors of the program may still call the library. */
static void cm_at_exit(void)
{
    if (cm_python.Py_IsInitialized()) {
        int before = cm_shield();
        int state = cm_python.PyGILState_Ensure();
        cm_python.PyRun_SimpleString(cm_exit_code);
        cm_python.PyGILState_Release(state);
        cm_unshield(before);
    }
}

static void cm_set(void *handle, const char *flag)
{
    int *place = dlsym(handle, flag);
    if (place)
        *place = 1;
}

static int cm_start_python(void *handle)
{
    wchar_t *(*decode)(const char *, size_t *);
    void (*set_program_name)(const wchar_t *);
    *(void **)&decode = dlsym(handle, "Py_DecodeLocale");
    *(void **)&set_program_name = dlsym(handle, "Py_SetProgramName");
    if (!decode || !set_program_name) {
        cm_complain("this Python cannot be embedded: Py_SetProgramName", " is missing");
        return 0;
    }
    /* Python ignores PYTHONHOME and similar variables, because they are for other interpreters.
     * Python does not import the module site, which would extend sys.path. The start code extends
     * sys.path instead. */
    cm_set(handle, "Py_IgnoreEnvironmentFlag");
    cm_set(handle, "Py_NoSiteFlag");
    /* Py_InitializeEx changes the locale of the program. So the locale is restored afterwards. */
    const char *current = setlocale(LC_ALL, NULL);
    char *locale = current ? strdup(current) : NULL;
    wchar_t *program = decode(cm_executable, NULL);
    if (program)
        set_program_name(program);
    cm_python.Py_InitializeEx(0); /* 0: Python installs no signal handlers */
    /* The first import of the module _signal also replaces the default action of SIGINT. So this
     * function imports the module, and restores the action. Later imports change nothing. */
    struct sigaction interrupt;
    int is_default = !sigaction(SIGINT, NULL, &interrupt) && interrupt.sa_handler == SIG_DFL;
    cm_python.PyRun_SimpleString("import _signal");
    if (is_default)
        sigaction(SIGINT, &interrupt, NULL);
    if (locale) {
        setlocale(LC_ALL, locale);
        free(locale);
    }
    cm_python.PyEval_SaveThread();
    atexit(cm_at_exit);
    cm_started = 1;
    return 1;
}

/* Finds or starts Python. The caller holds the mutex; no step here waits for the GIL. */
static int cm_load(void)
{
    void *handle = RTLD_DEFAULT;
    if (!dlsym(RTLD_DEFAULT, "Py_IsInitialized")) {
        handle = cm_open_python();
        if (!handle)
            return 0;
    }
    return cm_look_up(handle) && (cm_python.Py_IsInitialized() || cm_start_python(handle));
}

/* Fills cm_table. If two threads race, one waits in engine.start() until the other has filled the
 * table. */
static void cm_fill(void)
{
    char code[sizeof cm_start_code + 128];
    snprintf(code, sizeof code, "%s(%llu, %llu, %d)", cm_start_code,
             (unsigned long long)(uintptr_t)&cm_table, (unsigned long long)(uintptr_t)&cm_ready,
             cm_started);
    int state = cm_python.PyGILState_Ensure();
    if (cm_python.PyRun_SimpleString(code) || !atomic_load(&cm_ready))
        atomic_store(&cm_ready, -1);
    cm_python.PyGILState_Release(state);
}

static int cm_start(void)
{
    pthread_mutex_lock(&cm_mutex);
    if (!cm_loaded)
        cm_loaded = cm_load() ? 1 : -1;
    if (cm_loaded > 0 && !atomic_load(&cm_ready) && cm_python.Py_IsInitialized()) {
        cm_starting++;
        pthread_mutex_unlock(&cm_mutex);
        cm_fill();
        pthread_mutex_lock(&cm_mutex);
        cm_starting--;
        pthread_cond_broadcast(&cm_over);
    }
    pthread_mutex_unlock(&cm_mutex);
    return atomic_load(&cm_ready) > 0;
}

/* Returns 1 if the table is usable, 0 if it could not be filled, and -1 if Python has ended. */
static inline int cm_enter(void)
{
    if (atomic_load_explicit(&cm_ready, memory_order_acquire) <= 0)
        return cm_start();
    return cm_python.Py_IsInitialized() ? 1 : -1;
}

/* Python does not know of a fork by C code, so this library tells Python. If the forking thread
 * holds the GIL, this library assumes that Python itself forks, and does not tell Python. */
enum { CM_NOTHING_BEGUN = -2, CM_KNOWN = -1 };
/* CM_NOTHING_BEGUN: no thread has begun a first call, and cm_mutex is locked during the fork.
 * CM_KNOWN: Python needs no notice of the fork. Any other value: the result of PyGILState_Ensure,
 * which the parent passes to PyGILState_Release after the fork. */
static __thread int cm_fork_state;
static __thread int cm_fork_shield;

static void cm_before_fork(void)
{
    cm_fork_shield = cm_shield();
    pthread_mutex_lock(&cm_mutex);
    cm_fork_state = CM_KNOWN;
    if (cm_loaded > 0 && cm_python.Py_IsInitialized() && cm_python.PyGILState_Check()) {
        /* This thread holds the GIL, which a first call in another thread needs. If this thread
         * waited for the end of that call, both would deadlock. */
        pthread_mutex_unlock(&cm_mutex);
        return;
    }
    /* A first call in another thread may hold locks, which would stay locked in the child. So the
     * fork waits for the end of that call. */
    while (cm_starting)
        pthread_cond_wait(&cm_over, &cm_mutex);
    if (!cm_loaded) {
        /* The mutex stays locked until the end of the fork, so no first call begins. */
        cm_fork_state = CM_NOTHING_BEGUN;
        return;
    }
    pthread_mutex_unlock(&cm_mutex);
    if (cm_loaded > 0 && cm_python.Py_IsInitialized()) {
        cm_fork_state = cm_python.PyGILState_Ensure();
        cm_python.PyOS_BeforeFork();
    }
}

static void cm_after_fork_in_parent(void)
{
    if (cm_fork_state == CM_NOTHING_BEGUN)
        pthread_mutex_unlock(&cm_mutex);
    if (cm_fork_state >= 0) {
        cm_python.PyOS_AfterFork_Parent();
        cm_python.PyGILState_Release(cm_fork_state);
    }
    cm_unshield(cm_fork_shield);
}

static void cm_after_fork_in_child(void)
{
    /* Threads of the parent, which do not exist here, may have held the mutex. */
    cm_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    cm_over = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    if (cm_starting && !atomic_load(&cm_ready)) {
        /* The parent's thread in cm_fill does not exist in this child. So the child never releases
         * the locks of Python's import system that the parent's thread held. */
        atomic_store(&cm_ready, -1);
        cm_complain("this process was forked while another thread made the first call", "");
    }
    cm_starting = 0;
    if (cm_fork_state >= 0) {
        cm_python.PyOS_AfterFork_Child();
        /* This call releases the GIL and keeps Python's state of this thread. PyGILState_Release
         * could delete that state. It may be the only state here, because the thread that started
         * Python may not exist here. Python 3.11 aborts if no thread has a state. */
        cm_python.PyEval_SaveThread();
    }
    cm_unshield(cm_fork_shield);
}

__attribute__((constructor)) static void cm_on_load(void)
{
    pthread_atfork(cm_before_fork, cm_after_fork_in_parent, cm_after_fork_in_child);
}
