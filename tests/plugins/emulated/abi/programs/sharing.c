/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and an event of one process, used by another: every code on the way is checked.
 */
#include "hip.h"

enum { SIZE = 1 << 20, TEXT = 16 };

static void import_memory(hipIpcMemHandle_t handle)
{
    void *first = NULL, *second = NULL;
    char text[TEXT] = "";
    hipIpcMemHandle_t wrong = handle;
    hipPointerAttribute_t attributes;
    hipDeviceptr_t base;
    size_t size;

    ANSWERS(1, hipIpcOpenMemHandle(NULL, handle, LAZY));
    ANSWERS(1, hipIpcOpenMemHandle(&first, handle, 123));
    memset(&wrong, 0, sizeof wrong);
    ANSWERS(1, hipIpcOpenMemHandle(&first, wrong, LAZY));
    wrong = handle;
    wrong.reserved[31] ^= 1;
    ANSWERS(17, hipIpcOpenMemHandle(&first, wrong, LAZY));

    ANSWERS(0, hipIpcOpenMemHandle(&first, handle, LAZY));
    ANSWERS(0, hipIpcOpenMemHandle(&second, handle, LAZY));
    HOLDS(first && first == second);
    ANSWERS(0, hipMemGetAddressRange(&base, &size, (char *)first + 5));
    HOLDS(base == first && size == SIZE);
    ANSWERS(0, hipMemcpy(text, first, TEXT, hipMemcpyDeviceToHost));
    HOLDS(!strcmp(text, "from the parent"));
    ANSWERS(0, hipMemcpy(first, "from the child", TEXT, hipMemcpyHostToDevice));
    ANSWERS(1, hipFree(first));

    ANSWERS(0, hipIpcCloseMemHandle(first));
    ANSWERS(0, hipPointerGetAttributes(&attributes, second));
    HOLDS(attributes.device == 0 && attributes.devicePointer == second);
    ANSWERS(0, hipIpcCloseMemHandle(second));
    /* ROCm 5 refuses an unknown address; later releases say that it is on no device. */
    HOLDS((int)hipPointerGetAttributes(&attributes, second) == 1
          || attributes.device == -2);
    ANSWERS(1, hipIpcCloseMemHandle(second));
    ANSWERS(1, hipIpcCloseMemHandle(NULL));
    ANSWERS(1, hipPeekAtLastError());
    ANSWERS(1, hipGetLastError());
    ANSWERS(0, hipGetLastError());
}

static void import_event(hipIpcEventHandle_t handle)
{
    hipEvent_t event = NULL;
    hipIpcEventHandle_t wrong;

    memset(&wrong, 0, sizeof wrong);
    ANSWERS(1, hipIpcOpenEventHandle(NULL, handle));
    ANSWERS(1, hipIpcOpenEventHandle(&event, wrong));
    ANSWERS(0, hipIpcOpenEventHandle(&event, handle));
    ANSWERS(0, hipEventSynchronize(event));
    ANSWERS(0, hipEventQuery(event));
    ANSWERS(0, hipEventDestroy(event));
}

int main(void)
{
    int down[2], up[2], count = 0;
    char done, text[TEXT] = "";
    void *memory = NULL, *other = NULL;
    hipIpcMemHandle_t handle, again, late;
    hipIpcEventHandle_t event_handle;
    hipEvent_t event, plain;
    pid_t child;

    HOLDS(!pipe(down) && !pipe(up));
    child = start();
    if (!child) {
        receive_bytes(down[0], &handle, sizeof handle);
        receive_bytes(down[0], &event_handle, sizeof event_handle);
        import_memory(handle);
        import_event(event_handle);
        send_bytes(up[1], "x", 1);
        receive_bytes(down[0], &late, sizeof late);
        ANSWERS(17, hipIpcOpenMemHandle(&memory, late, LAZY));
        finish();
    }
    ANSWERS(0, hipInit(0));
    ANSWERS(1, hipInit(1));
    ANSWERS(0, hipGetDeviceCount(&count));
    HOLDS(count == 2);
    ANSWERS(0, hipMalloc(&memory, SIZE));
    ANSWERS(0, hipMemcpy(memory, "from the parent", TEXT, hipMemcpyHostToDevice));
    ANSWERS(1, hipIpcGetMemHandle(NULL, memory));
    ANSWERS(1, hipIpcGetMemHandle(&handle, NULL));
    ANSWERS(1, hipIpcGetMemHandle(NULL, NULL));
    ANSWERS(1, hipIpcGetMemHandle(&handle, (char *)memory + SIZE));
    ANSWERS(0, hipIpcGetMemHandle(&handle, memory));
    ANSWERS(0, hipIpcGetMemHandle(&again, memory));
    HOLDS(!memcmp(&handle, &again, sizeof handle));
    ANSWERS(1, hipIpcCloseMemHandle(memory));
#if ROCM > 5
    ANSWERS(201, hipIpcOpenMemHandle(&other, handle, LAZY));
#endif

    ANSWERS(1, hipEventCreateWithFlags(&event, hipEventInterprocess));
    ANSWERS(0, hipEventCreateWithFlags(&plain, hipEventDisableTiming));
    ANSWERS(0, hipEventCreateWithFlags(&event, hipEventDisableTiming | hipEventInterprocess));
    ANSWERS(400, hipIpcGetEventHandle(&event_handle, plain));
    ANSWERS(1, hipIpcGetEventHandle(&event_handle, NULL));
    ANSWERS(1, hipIpcGetEventHandle(NULL, event));
    ANSWERS(0, hipIpcGetEventHandle(&event_handle, event));
    ANSWERS(201, hipIpcOpenEventHandle(&plain, event_handle));
    ANSWERS(0, hipEventRecord(event, NULL));

    send_bytes(down[1], &handle, sizeof handle);
    send_bytes(down[1], &event_handle, sizeof event_handle);
    receive_bytes(up[0], &done, 1);
    ANSWERS(0, hipMemcpy(text, memory, TEXT, hipMemcpyDeviceToHost));
    HOLDS(!strcmp(text, "from the child"));
    ANSWERS(0, hipFree(memory));
    ANSWERS(1, hipFree(memory));
    ANSWERS(1, hipIpcGetMemHandle(&again, memory));
    send_bytes(down[1], &handle, sizeof handle);
    wait_for(child);
    ANSWERS(0, hipEventDestroy(event));
    (void)other;
    finish();
}
