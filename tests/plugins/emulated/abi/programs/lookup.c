/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that was not linked with the library: it opens it by name, looks its functions up, and
 * gives it back, more than once. So do frameworks that run with and without a GPU.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "hip.h"

typedef hipError_t (*allocate_t)(void **, size_t);
typedef hipError_t (*free_t)(void *);
typedef hipError_t (*memcpy_t)(void *, const void *, size_t, hipMemcpyKind);
typedef const char *(*name_t)(hipError_t);

static void *look_up(void *library, const char *name, const char *version)
{
    void *found = dlsym(library, name);

    HOLDS(found && found == dlvsym(library, name, version));
    HOLDS(!dlvsym(library, name, "hip_4.1"));
    return found;
}

static void *elsewhere(void *library)
{
    int (*count)(int *), devices = 0;

    *(void **)&count = look_up(library, "hipGetDeviceCount", "hip_4.2");
    ANSWERS(0, count(&devices));
    HOLDS(devices == 2);
    return NULL;
}

static void use(const char *file, int flags)
{
    void *library = dlopen(file, flags), *memory = NULL;
    char text[8] = "";
    pthread_t thread;

    HOLDS(library);
    allocate_t allocate = (allocate_t)look_up(library, "hipMalloc", "hip_4.2");
    free_t release = (free_t)look_up(library, "hipFree", "hip_4.2");
    memcpy_t copy = (memcpy_t)look_up(library, "hipMemcpy", "hip_4.2");
    name_t name = (name_t)look_up(library, "hipGetErrorName", "hip_4.2");
    look_up(library, "hipPointerGetAttribute", "hip_5.0");
    look_up(library, "hipMemCreate", "hip_5.1");
    look_up(library, "hipGetDevicePropertiesR0600", "hip_6.0");
    look_up(library, "hipStreamGetId", "hip_7.1");
    HOLDS(!dlsym(library, "hipNobodyHasIt") && dlerror());

    ANSWERS(0, allocate(&memory, 8));
    ANSWERS(0, copy(memory, "looked", 7, hipMemcpyHostToDevice));
    ANSWERS(0, copy(text, memory, 7, hipMemcpyDeviceToHost));
    HOLDS(!strcmp(text, "looked"));
    HOLDS(!pthread_create(&thread, NULL, elsewhere, library) && !pthread_join(thread, NULL));
    ANSWERS(0, release(memory));
    HOLDS(!strcmp(name(release(memory)), "hipErrorInvalidValue"));
    HOLDS(!dlclose(library));
}

int main(int count, char **words)
{
    HOLDS(count == 2);
    use(words[1], RTLD_NOW | RTLD_LOCAL);
    use(words[1], RTLD_LAZY | RTLD_GLOBAL);
    use(words[1], RTLD_NOW | RTLD_DEEPBIND);
    finish();
}
