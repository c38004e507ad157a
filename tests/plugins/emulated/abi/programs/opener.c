/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a library, closes it, and opens it again; it is linked with nothing. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(int count, char **words)
{
    void *handle = dlopen(words[1], RTLD_NOW);
    if (!handle) { puts(dlerror()); return 2; }
    int found = -1;
    int (*ask)(int *);
    *(void **)&ask = dlsym(handle, "hipGetDeviceCount");
    printf("%d ", ask(&found));
    printf("%d ", found);
    dlclose(handle);
    handle = dlopen(words[1], RTLD_NOW);
    *(void **)&ask = dlsym(handle, "hipGetDeviceCount");
    printf("%d\n", ask(&found));
    return 0;
}
