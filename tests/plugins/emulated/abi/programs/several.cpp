/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that starts itself again, once for each process, as samples of IPC do. The parent has
 * memory and an event on each device; the children take turns with them, and with each other's
 * events. What one passes to the next is in shared memory, and one handle is a word of the command.
 */
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#ifdef AMD_HEADERS
#define __HIP_PLATFORM_AMD__ 1
#include <hip/hip_runtime.h>
#endif
#include "hip.h"

#define CHECK(call) \
    do { \
        hipError_t found_ = (call); \
        if (found_ != hipSuccess) { \
            printf("%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call, hipGetErrorName(found_), \
                   hipGetErrorString(found_)); \
            exit(1); \
        } \
    } while (0)
/* What is asked for wrongly is refused by name, and the thread remembers it once. */
#define FAILS(name, call) \
    do { \
        (void)hipGetLastError(); \
        HOLDS(std::string(name) == hipGetErrorName(call)); \
        HOLDS(std::string(name) == hipGetErrorName(hipGetLastError())); \
        HOLDS(hipGetLastError() == hipSuccess); \
    } while (0)

extern char **environ;

namespace {

constexpr int children = 3, devices = 2, floats = 1000;
constexpr size_t nbytes = floats * sizeof(float);

struct Shared {
    std::atomic<int> turn;
    hipIpcMemHandle_t memory[devices];
    hipIpcEventHandle_t events[devices];
};

template <typename T> class Buffer {
public:
    explicit Buffer(size_t count) { CHECK(hipMalloc(&pointer_, count * sizeof(T))); }
    Buffer(const Buffer &) = delete;
    ~Buffer() { CHECK(hipFree(pointer_)); }
    T *get() const { return pointer_; }

private:
    T *pointer_ = nullptr;
};

/* Freed by a destructor that runs after main. */
std::unique_ptr<Buffer<double>> lasting;

std::string hexadecimal(const hipIpcMemHandle_t &handle)
{
    std::string text;
    char digits[3];
    for (unsigned char byte : handle.reserved) {
        snprintf(digits, sizeof digits, "%02x", byte);
        text += digits;
    }
    return text;
}

hipIpcMemHandle_t handle_of(const std::string &text)
{
    hipIpcMemHandle_t handle;
    for (size_t i = 0; i < sizeof handle.reserved; i++)
        handle.reserved[i] = (char)std::stoi(text.substr(2 * i, 2), nullptr, 16);
    return handle;
}

void take_turn(Shared &shared, int number, int device, float *memory, hipEvent_t event)
{
    hipStream_t stream;
    float *host = nullptr;

    CHECK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    CHECK(hipHostMalloc(&host, nbytes));
    while (shared.turn.load() != number * devices + device)
        usleep(1000);
    CHECK(hipStreamWaitEvent(stream, event, 0));
    CHECK(hipMemcpyAsync(host, memory, nbytes, hipMemcpyDeviceToHost, stream));
    CHECK(hipStreamSynchronize(stream));
    for (int i = 0; i < floats; i++)
        host[i] += (float)(number + 1);
    CHECK(hipMemcpyAsync(memory, host, nbytes, hipMemcpyHostToDevice, stream));
    CHECK(hipEventRecord(event, stream));
    shared.turn++;
    CHECK(hipStreamSynchronize(stream));
    CHECK(hipStreamDestroy(stream));
    CHECK(hipHostFree(host));
}

void child(Shared &shared, int number, const std::string &word)
{
    hipIpcMemHandle_t nonsense = {};
    float *memory[devices];
    hipEvent_t events[devices];
    std::vector<std::thread> threads;

    HOLDS(word == hexadecimal(shared.memory[0]));
    shared.memory[0] = handle_of(word);
    FAILS("hipErrorInvalidValue", hipIpcOpenMemHandle((void **)&memory[0], nonsense, LAZY));
    FAILS("hipErrorInvalidValue", hipIpcOpenMemHandle(nullptr, shared.memory[0], LAZY));
    FAILS("hipErrorInvalidDevice", hipSetDevice(devices));
    for (int device = 0; device < devices; device++) {
        CHECK(hipSetDevice(device));
        CHECK(hipIpcOpenMemHandle((void **)&memory[device], shared.memory[device], LAZY));
        CHECK(hipIpcOpenEventHandle(&events[device], shared.events[device]));
    }
    /* A thread for each device, none of which is the one that opened. */
    for (int device = 0; device < devices; device++)
        threads.emplace_back([&, device] {
            CHECK(hipSetDevice(device));
            take_turn(shared, number, device, memory[device], events[device]);
        });
    for (auto &thread : threads)
        thread.join();
    for (int device = 0; device < devices; device++) {
        CHECK(hipSetDevice(device));
        CHECK(hipEventDestroy(events[device]));
        CHECK(hipIpcCloseMemHandle(memory[device]));
        FAILS("hipErrorInvalidValue", hipIpcCloseMemHandle(memory[device]));
    }
}

void parent(Shared &shared, const char *file, const std::string &name)
{
    std::vector<float> numbers(floats);
    std::unique_ptr<Buffer<float>> memory[devices];
    hipEvent_t events[devices];
    pid_t pids[children];
    int *managed = nullptr;

    for (int device = 0; device < devices; device++) {
        CHECK(hipSetDevice(device));
        memory[device].reset(new Buffer<float>(floats));
        CHECK(hipMemset(memory[device]->get(), 0, nbytes));
        CHECK(hipIpcGetMemHandle(&shared.memory[device], memory[device]->get()));
        CHECK(hipEventCreateWithFlags(&events[device],
                                      hipEventDisableTiming | hipEventInterprocess));
        CHECK(hipIpcGetEventHandle(&shared.events[device], events[device]));
    }
    CHECK(hipMallocManaged(&managed, sizeof *managed));
    *managed = 7;
    CHECK(hipDeviceSynchronize());
    for (int i = 0; i < children; i++) {
        std::string number = std::to_string(i), word = hexadecimal(shared.memory[0]);
        char *words[] = {(char *)file, (char *)name.c_str(), &number[0], &word[0], nullptr};
        /* One way to start another program, and the other. */
        if (i % 2) {
            HOLDS(!posix_spawn(&pids[i], file, nullptr, nullptr, words, environ));
        } else if (!(pids[i] = start())) {
            execv(file, words);
            _exit(127);
        }
    }
    for (pid_t pid : pids)
        wait_for(pid);
    for (int device = 0; device < devices; device++) {
        CHECK(hipSetDevice(device));
        CHECK(hipEventSynchronize(events[device]));
        CHECK(hipEventQuery(events[device]));
        CHECK(hipMemcpy(numbers.data(), memory[device]->get(), nbytes, hipMemcpyDeviceToHost));
        for (float one : numbers)
            HOLDS(one == 6);
        CHECK(hipEventDestroy(events[device]));
    }
    CHECK(hipFree(managed));
    lasting.reset(new Buffer<double>(10));
}

} /* namespace */

int main(int count, char **words)
{
    std::string name = count == 1 ? "/crossmem-several-" + std::to_string(getpid()) : words[1];
    int descriptor = shm_open(name.c_str(), O_RDWR | (count == 1 ? O_CREAT | O_EXCL : 0), 0600);

    HOLDS(descriptor >= 0 && !ftruncate(descriptor, sizeof(Shared)));
    void *place = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    HOLDS(place != MAP_FAILED);
    if (count == 1) {
        parent(*new (place) Shared(), words[0], name);
        shm_unlink(name.c_str());
    } else {
        child(*(Shared *)place, std::stoi(words[2]), words[3]);
    }
    finish();
}
