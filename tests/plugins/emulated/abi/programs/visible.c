/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the second device, opened by processes that see one device, or both in another order.
 */
#include "hip.h"

enum { SIZE = 1 << 20 };

static void import_memory(int from, const char *visible)
{
    hipIpcMemHandle_t handle;
    hipPointerAttribute_t attributes;
    void *first = NULL, *second = NULL;
    int word = 0;

    setenv("HIP_VISIBLE_DEVICES", visible, 1);
    receive_bytes(from, &handle, sizeof handle);
    ANSWERS(0, hipSetDevice(0));
    ANSWERS(0, hipIpcOpenMemHandle(&first, handle, LAZY));
    ANSWERS(0, hipIpcOpenMemHandle(&second, handle, LAZY));
    HOLDS(first == second);
    ANSWERS(0, hipPointerGetAttributes(&attributes, first));
    HOLDS(attributes.device == 0);
    ANSWERS(0, hipMemcpy(&word, first, sizeof word, hipMemcpyDeviceToHost));
    word++;
    ANSWERS(0, hipMemcpy(first, &word, sizeof word, hipMemcpyHostToDevice));
    ANSWERS(0, hipIpcCloseMemHandle(first));
    ANSWERS(0, hipIpcCloseMemHandle(second));
    finish();
}

int main(void)
{
    const char *const visible[] = {"0", "1", "1,0", "0,1"};
    hipIpcMemHandle_t handle;
    pid_t children[4];
    void *memory = NULL;
    int down[4][2], word = 10;

    for (int i = 0; i < 4; i++) {
        HOLDS(!pipe(down[i]));
        children[i] = start();
        if (!children[i])
            import_memory(down[i][0], visible[i]);
    }
    ANSWERS(0, hipSetDevice(1));
    ANSWERS(0, hipMalloc(&memory, SIZE));
    ANSWERS(0, hipMemcpy(memory, &word, sizeof word, hipMemcpyHostToDevice));
    ANSWERS(0, hipIpcGetMemHandle(&handle, memory));
    for (int i = 0; i < 4; i++) {
        send_bytes(down[i][1], &handle, sizeof handle);
        wait_for(children[i]);
    }
    ANSWERS(0, hipMemcpy(&word, memory, sizeof word, hipMemcpyDeviceToHost));
    HOLDS(word == 14);
    ANSWERS(0, hipFree(memory));
    finish();
}
