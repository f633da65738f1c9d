// A driver for `device.cpp` where there is none: memory is the host's, kernels are those of shim/cpu.cpp, which the
// program has. It shows that the check runs to its end, not how fast anything is.
//
// Memory lies in files without a name, so that other processes can map it. A stream is a thread for each launch, one
// after the other. PHALANX_STAND_IN_SPOILS=NAME flips a bit of what that kernel writes.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>

typedef unsigned long long Address;
typedef void (*Kernel)(const void *, unsigned, unsigned);

struct Place {
    int process, file;
    size_t bytes;
};
struct Handle {
    Place place;
    char rest[64 - sizeof(Place)];
};
struct Function {
    std::string name;
    Kernel kernel;
};

static std::map<Address, Place> places;
static std::map<std::string, Function> functions;
static std::thread stream;
static std::atomic<bool> busy;

static void settle() {
    if (stream.joinable()) stream.join();
}

static void *map(int file, size_t bytes) { return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); }

extern "C" {
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGet(int *device, int) { return *device = 0, 0; }
int cuDeviceGetName(char *name, int bytes, int) { return snprintf(name, bytes, "a stand-in of a device"), 0; }
int cuDeviceGetAttribute(int *value, int, int) { return *value = 1, 0; }
int cuDevicePrimaryCtxRetain(void **context, int) { return *context = nullptr, 0; }
int cuCtxSetCurrent(void *) { return 0; }
int cuCtxSynchronize() { return settle(), 0; }
int cuGetErrorName(int, const char **name) { return *name = "an error of the stand-in", 0; }
int cuModuleLoadData(void **, const void *) { return 0; }

int cuModuleGetFunction(void **function, void *, const char *name) {
    const auto kernel = (Kernel)dlsym(RTLD_DEFAULT, name);
    if (!kernel) return 500;
    Function &found = functions[name];
    found = {name, kernel};
    *function = &found;
    return 0;
}

int cuLaunchKernel(void *function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned,
                   void *, void **parameters, void **) {
    settle();
    // Parameters are the launch's own from here on; none is larger.
    static char copy[4096];
    const Function found = *(const Function *)function;
    memcpy(copy, parameters[0], 1024);
    const char *const spoils = getenv("PHALANX_STAND_IN_SPOILS");
    busy = true;
    stream = std::thread([=] {
        found.kernel(copy, blocks, threads);
        // The first member of every kernel's parameters is its target.
        if (spoils && found.name == spoils) **(char **)copy ^= 1;
        busy = false;
    });
    return 0;
}

int cuMemAlloc_v2(Address *address, size_t bytes) {
    const int file = memfd_create("device memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, bytes) != 0) return 2;
    *address = (Address)map(file, bytes);
    places[*address] = {getpid(), file, bytes};
    return 0;
}
int cuMemFree_v2(Address address) {
    settle();
    const Place place = places[address];
    munmap((void *)address, place.bytes);
    close(place.file);
    return places.erase(address), 0;
}
int cuMemcpyHtoD_v2(Address to, const void *from, size_t bytes) { return settle(), memcpy((void *)to, from, bytes), 0; }
int cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) { return settle(), memcpy(to, (void *)from, bytes), 0; }
int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *) {
    return settle(), memcpy((void *)to, (void *)from, bytes), 0;
}
int cuMemsetD8_v2(Address to, unsigned char value, size_t bytes) { return settle(), memset((void *)to, value, bytes), 0; }
int cuMemHostAlloc(void **pointer, size_t bytes, unsigned) { return *pointer = calloc(bytes, 1), 0; }
int cuMemHostGetDevicePointer_v2(Address *address, void *pointer, unsigned) { return *address = (Address)pointer, 0; }
int cuStreamCreate(void **created, unsigned) { return *created = &stream, 0; }
int cuStreamSynchronize(void *) { return settle(), 0; }
int cuStreamQuery(void *) { return busy ? 600 : 0; }
int cuEventCreate(void **event, unsigned) { return *event = new std::chrono::steady_clock::time_point, 0; }
int cuEventRecord(void *event, void *) {
    settle();
    *(std::chrono::steady_clock::time_point *)event = std::chrono::steady_clock::now();
    return 0;
}
int cuEventSynchronize(void *) { return 0; }
int cuEventElapsedTime(float *milliseconds, void *begin, void *end) {
    typedef std::chrono::steady_clock::time_point Point;
    *milliseconds = std::chrono::duration<float, std::milli>(*(Point *)end - *(Point *)begin).count();
    return 0;
}
int cuIpcGetMemHandle(Handle *handle, Address address) { return handle->place = places[address], 0; }
int cuIpcOpenMemHandle_v2(Address *address, Handle handle, unsigned) {
    const std::string path = "/proc/" + std::to_string(handle.place.process) + "/fd/" + std::to_string(handle.place.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return 201;
    *address = (Address)map(file, handle.place.bytes);
    close(file);
    return 0;
}
int cuIpcCloseMemHandle(Address) { return 0; }
}
