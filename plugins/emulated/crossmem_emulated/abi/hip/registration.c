/* SPDX-License-Identifier: Apache-2.0
 *
 * A program with kernels calls the __hipRegister functions before main. Most functions of this
 * library start a Python interpreter if the process has none, but the __hipRegister functions do
 * not. So if the program forks in main, the child does not get a copy of a running interpreter. The
 * __hipRegister functions store nothing, because the emulation refuses each launch of a kernel.
 */
static void *cm_fat_binary;
static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    hipObject stream;
} cm_configuration;

EXPORTED void **__hipRegisterFatBinary(const void *data)
{
    (void)data;
    return &cm_fat_binary;
}

EXPORTED void __hipUnregisterFatBinary(void **modules)
{
    (void)modules;
}

EXPORTED void __hipRegisterFunction(void **modules, const void *host, char *device,
                                    const char *name, unsigned int limit, void *tid, void *bid,
                                    void *block, void *grid, int *warp)
{
}

EXPORTED void __hipRegisterVar(void **modules, void *variable, char *host, char *device,
                               int is_extern, size_t size, int constant, int global)
{
}

EXPORTED void __hipRegisterManagedVar(void *modules, void **pointer, void *value,
                                      const char *name, size_t size, unsigned int align)
{
}

EXPORTED void __hipRegisterSurface(void **modules, void *variable, char *host, char *device,
                                   int type, int is_extern)
{
}

EXPORTED void __hipRegisterTexture(void **modules, void *variable, char *host, char *device,
                                   int type, int norm, int is_extern)
{
}

EXPORTED hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                               hipObject stream)
{
    cm_configuration.grid = grid;
    cm_configuration.block = block;
    cm_configuration.shared = shared;
    cm_configuration.stream = stream;
    return 0;
}

EXPORTED hipError_t __hipPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared,
                                              hipObject *stream)
{
    *grid = cm_configuration.grid;
    *block = cm_configuration.block;
    *shared = cm_configuration.shared;
    *stream = cm_configuration.stream;
    return 0;
}
