// A stand-in for the CUDA driver: device memory is host memory, and each stream is a thread that does its work in order,
// so that what is not ordered by events may happen in any order. Built and loaded by the tests.
//
// PHALANX_TEST_FAIL=FUNCTION:N:CODE   the N-th call of FUNCTION, counted from 1, returns CODE.
// PHALANX_TEST_DEVICES=N              so many devices; 2 if not set.
// PHALANX_TEST_APART=1                no device reaches another one's memory.
// PHALANX_TEST_STALL=N                the N-th launch waits until phx_stand_in_release.
// phx_stand_in_live()                 how many allocations, streams, events, modules and contexts there are.
// phx_stand_in_calls(FUNCTION)        how often FUNCTION was called.
// phx_stand_in_faults()               how often memory was freed that was not there.
// phx_stand_in_put(STREAM, WHAT, WITH) puts a function on a stream, as a kernel of another library.
// phx_stand_in_device()               the device of the calling thread's context, or -1.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

using Code = unsigned;
enum : Code { OK = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_READY = 600, ALREADY_REGISTERED = 712 };

struct Event {
    std::mutex lock;
    std::condition_variable changed;
    uint64_t recorded = 0, done = 0; // numbers of the last record and of the last one that was reached
};

struct Stream {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> work;
    bool ending = false, ended = false;
    int device = -1; // of the context in which it was made

    static std::shared_ptr<Stream> start() { // its thread keeps it alive until its work is done
        std::shared_ptr<Stream> stream(new Stream);
        std::thread([stream] { stream->run(); }).detach();
        return stream;
    }
    bool put(std::function<void()> what) { // false: the stream is ending, and takes no more
        {
            std::lock_guard<std::mutex> hold(lock);
            if (ending) return false;
            work.push_back(std::move(what));
        }
        changed.notify_all();
        return true;
    }
    void run() {
        for (;;) {
            std::function<void()> what;
            {
                std::unique_lock<std::mutex> hold(lock);
                changed.wait(hold, [this] { return ending || !work.empty(); });
                if (work.empty()) {
                    ended = true;
                    changed.notify_all();
                    return;
                }
                what = std::move(work.front());
                work.pop_front();
            }
            what();
        }
    }
    void end() { // once what is on it is done; does not wait
        { std::lock_guard<std::mutex> hold(lock); ending = true; }
        changed.notify_all();
    }
    void wait_for_end() {
        std::unique_lock<std::mutex> hold(lock);
        changed.wait(hold, [this] { return ended; });
    }
};

struct Memory { size_t bytes; int device, file; }; // device -1: pinned host memory; file -1: another process's

static std::mutex global;
static std::map<uintptr_t, Memory> memory;
static std::map<std::string, long> calls;
static std::atomic<long> live{0}, faults{0};
static int contexts[16];
static thread_local std::deque<intptr_t> current;

static Code injected(const char *function) {
    static const char *wish = std::getenv("PHALANX_TEST_FAIL");
    std::lock_guard<std::mutex> hold(global);
    long count = ++calls[function];
    if (!wish) return OK;
    std::string name = wish;
    size_t first = name.find(':'), second = name.find(':', first + 1);
    if (name.substr(0, first) != function || std::atol(name.c_str() + first + 1) != count) return OK;
    return (Code)std::atol(name.c_str() + second + 1);
}
#define CALL(name) extern "C" Code name
#define MAY_FAIL do { if (Code code = injected(__func__)) return code; } while (0)
#define IN_CONTEXT do { MAY_FAIL; if (current.empty()) return INVALID_CONTEXT; } while (0)

static int devices() {
    const char *wish = std::getenv("PHALANX_TEST_DEVICES");
    return wish ? std::atoi(wish) : 2;
}
static const Memory *find(uintptr_t address) {
    auto after = memory.upper_bound(address);
    if (after == memory.begin()) return nullptr;
    --after;
    return address < after->first + after->second.bytes ? &after->second : nullptr;
}
static bool lies(uintptr_t address, size_t bytes, bool on_device) {
    std::lock_guard<std::mutex> hold(global);
    auto after = memory.upper_bound(address);
    if (after == memory.begin()) return false;
    --after;
    return address + bytes <= after->first + after->second.bytes && (after->second.device >= 0) == on_device;
}
static std::map<Stream *, std::shared_ptr<Stream>> streams;
static std::deque<std::weak_ptr<Stream>> destroyed; // what is on them is still done
// Waits for everything on every stream of a device, as freeing its memory does; of all devices for pinned memory.
static void synchronize(int device = -1) {
    std::deque<std::shared_ptr<Stream>> all;
    {
        std::lock_guard<std::mutex> hold(global);
        for (auto &one : streams) if (device < 0 || one.second->device == device) all.push_back(one.second);
        std::deque<std::weak_ptr<Stream>> alive;
        for (auto &one : destroyed) {
            if (std::shared_ptr<Stream> stream = one.lock()) {
                alive.push_back(one);
                if (device < 0 || stream->device == device) all.push_back(std::move(stream));
            }
        }
        destroyed.swap(alive);
    }
    for (auto &one : all) {
        std::promise<void> reached;
        if (one->put([&] { reached.set_value(); })) reached.get_future().wait();
        else one->wait_for_end();
    }
}
static Stream *stream_of(void *handle) {
    static std::shared_ptr<Stream> standard = Stream::start();
    return (uintptr_t)handle <= 2 ? standard.get() : (Stream *)handle;
}

extern "C" long phx_stand_in_live() { return live; }
extern "C" long phx_stand_in_faults() { return faults; }
extern "C" long phx_stand_in_calls(const char *function) {
    std::lock_guard<std::mutex> hold(global);
    return calls[function];
}

CALL(cuInit)(unsigned) { MAY_FAIL; return OK; }
CALL(cuDriverGetVersion)(int *version) { MAY_FAIL; *version = 12080; return OK; }
CALL(cuDeviceGetCount)(int *count) { MAY_FAIL; *count = devices(); return OK; }
CALL(cuDeviceGet)(int *device, int ordinal) { MAY_FAIL; *device = ordinal; return OK; }
CALL(cuDeviceGetName)(char *name, int length, int) { MAY_FAIL; std::strncpy(name, "stand-in", length); return OK; }
CALL(cuDeviceGetAttribute)(int *value, int attribute, int device) {
    MAY_FAIL;
    // Compute capability 9.0, 4 multiprocessors, each device on a PCI bus of its own.
    *value = attribute == 75 ? 9 : attribute == 16 ? 4 : attribute == 33 ? device + 1 : 0;
    return OK;
}
CALL(cuDeviceGetUuid_v2)(char *uuid, int device) {
    MAY_FAIL;
    std::memset(uuid, 0x5a, 16);
    uuid[0] = (char)device;
    return OK;
}
CALL(cuDeviceTotalMem_v2)(size_t *bytes, int) { MAY_FAIL; *bytes = (size_t)8 << 30; return OK; }
CALL(cuDeviceCanAccessPeer)(int *can, int, int) { MAY_FAIL; *can = !std::getenv("PHALANX_TEST_APART"); return OK; }
CALL(cuDevicePrimaryCtxRetain)(void **context, int device) {
    MAY_FAIL;
    std::lock_guard<std::mutex> hold(global);
    contexts[device]++; live++;
    *context = (void *)(intptr_t)(device + 1);
    return OK;
}
CALL(cuDevicePrimaryCtxRelease_v2)(int device) {
    std::lock_guard<std::mutex> hold(global);
    if (contexts[device] == 0) return INVALID_CONTEXT;
    contexts[device]--; live--;
    return OK;
}
CALL(cuCtxPushCurrent_v2)(void *context) { MAY_FAIL; current.push_back((intptr_t)context); return OK; }
CALL(cuCtxPopCurrent_v2)(void **context) {
    if (current.empty()) return INVALID_CONTEXT;
    *context = (void *)current.back();
    current.pop_back();
    return OK;
}
CALL(cuCtxGetDevice)(int *device) { IN_CONTEXT; *device = (int)current.back() - 1; return OK; }
static void add(uintptr_t start, size_t bytes, int device, int file = -1) {
    std::lock_guard<std::mutex> hold(global);
    memory[start] = {bytes, device, file};
    live++;
}
static Code take(uintptr_t start) {
    std::lock_guard<std::mutex> hold(global);
    if (!memory.erase(start)) return faults++, INVALID_VALUE;
    live--;
    return OK;
}
#include "shared.hpp"

CALL(cuMemHostAlloc)(void **start, size_t bytes, unsigned) {
    IN_CONTEXT;
    *start = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    add((uintptr_t)*start, bytes, -1);
    return OK;
}
CALL(cuMemFreeHost)(void *start) {
    synchronize();
    if (Code code = take((uintptr_t)start)) return code;
    std::free(start);
    return OK;
}
CALL(cuMemHostRegister_v2)(void *start, size_t bytes, unsigned) {
    IN_CONTEXT;
    { std::lock_guard<std::mutex> hold(global); if (find((uintptr_t)start)) return ALREADY_REGISTERED; }
    add((uintptr_t)start, bytes, -1);
    return OK;
}
CALL(cuMemHostUnregister)(void *start) { return take((uintptr_t)start); }
CALL(cuPointerGetAttribute)(void *value, int attribute, uintptr_t address) {
    MAY_FAIL; // asks about the process's addresses, not a context's
    std::lock_guard<std::mutex> hold(global);
    const Memory *found = find(address);
    if (!found) return INVALID_VALUE;
    if (attribute == 2) *(unsigned *)value = found->device < 0 ? 1 : 2;
    else *(int *)value = found->device < 0 ? 0 : found->device;
    return OK;
}
CALL(cuMemcpyHtoDAsync_v2)(uintptr_t target, const void *source, size_t bytes, void *stream) {
    IN_CONTEXT;
    if (!lies(target, bytes, true)) return INVALID_VALUE;
    if (lies((uintptr_t)source, bytes, false)) {
        stream_of(stream)->put([=] { std::memcpy((void *)target, source, bytes); });
    } else { // not pinned: read before the call returns
        std::string copy((const char *)source, bytes);
        stream_of(stream)->put([target, copy = std::move(copy)] { std::memcpy((void *)target, copy.data(), copy.size()); });
    }
    return OK;
}
CALL(cuMemcpyDtoHAsync_v2)(void *target, uintptr_t source, size_t bytes, void *stream) {
    IN_CONTEXT;
    if (!lies(source, bytes, true) || !lies((uintptr_t)target, bytes, false)) return INVALID_VALUE;
    stream_of(stream)->put([=] { std::memcpy(target, (void *)source, bytes); });
    return OK;
}
CALL(cuMemcpyDtoDAsync_v2)(uintptr_t target, uintptr_t source, size_t bytes, void *stream) {
    IN_CONTEXT;
    if (!lies(target, bytes, true) || !lies(source, bytes, true)) return INVALID_VALUE;
    stream_of(stream)->put([=] { std::memcpy((void *)target, (void *)source, bytes); });
    return OK;
}
extern "C" void phx_stand_in_put(void *stream, void (*what)(void *), void *with) {
    stream_of(stream)->put([=] { what(with); });
}
extern "C" int phx_stand_in_device() { return current.empty() ? -1 : (int)current.back() - 1; }
CALL(cuStreamCreate)(void **stream, unsigned) {
    IN_CONTEXT;
    std::shared_ptr<Stream> made = Stream::start();
    *stream = made.get();
    made->device = (int)current.back() - 1;
    std::lock_guard<std::mutex> hold(global);
    streams[made.get()] = made;
    live++;
    return OK;
}
CALL(cuStreamDestroy_v2)(void *stream) {
    std::shared_ptr<Stream> ending;
    {
        std::lock_guard<std::mutex> hold(global);
        ending = streams[(Stream *)stream];
        streams.erase((Stream *)stream);
        destroyed.push_back(ending);
    }
    ending->end();
    live--;
    return OK;
}
CALL(cuEventCreate)(void **event, unsigned) { IN_CONTEXT; *event = new std::shared_ptr<Event>(new Event); live++; return OK; }
CALL(cuEventDestroy_v2)(void *event) { delete (std::shared_ptr<Event> *)event; live--; return OK; }
CALL(cuEventRecord)(void *event, void *stream) {
    IN_CONTEXT;
    std::shared_ptr<Event> mark = *(std::shared_ptr<Event> *)event;
    uint64_t number;
    { std::lock_guard<std::mutex> hold(mark->lock); number = ++mark->recorded; }
    stream_of(stream)->put([=] {
        { std::lock_guard<std::mutex> hold(mark->lock); if (mark->done < number) mark->done = number; }
        mark->changed.notify_all();
    });
    return OK;
}
CALL(cuEventQuery)(void *event) {
    IN_CONTEXT;
    std::shared_ptr<Event> mark = *(std::shared_ptr<Event> *)event;
    std::lock_guard<std::mutex> hold(mark->lock);
    return mark->done >= mark->recorded ? OK : NOT_READY;
}
CALL(cuStreamWaitEvent)(void *stream, void *event, unsigned) {
    IN_CONTEXT;
    std::shared_ptr<Event> mark = *(std::shared_ptr<Event> *)event;
    uint64_t number;
    { std::lock_guard<std::mutex> hold(mark->lock); number = mark->recorded; }
    stream_of(stream)->put([=] {
        std::unique_lock<std::mutex> hold(mark->lock);
        mark->changed.wait(hold, [&] { return mark->done >= number; });
    });
    return OK;
}
// Stops a stream until phx_stand_in_release, as work that does not end.
static std::mutex stopping;
static std::condition_variable released;
static bool stopped = false;
extern "C" void phx_stand_in_stop(void *stream) {
    { std::lock_guard<std::mutex> hold(stopping); stopped = true; }
    stream_of(stream)->put([] {
        std::unique_lock<std::mutex> hold(stopping);
        released.wait(hold, [] { return !stopped; });
    });
}
extern "C" void phx_stand_in_release() {
    { std::lock_guard<std::mutex> hold(stopping); stopped = false; }
    released.notify_all();
}
#include "modules.hpp"
