// The part of the CUDA driver interface that the check uses, loaded at run time: no toolkit is needed to compile this.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <string>
#include <vector>

typedef unsigned long long Address;
struct MemoryHandle {
    char bytes[64];
};

[[noreturn]] static void give_up(const std::string &words) {
    fflush(stdout);
    fprintf(stderr, "check_device: %s\n", words.c_str());
    exit(2);
}

class Driver {
  public:
    enum { NOT_READY = 600 };

    Driver() {
        const char *path = getenv("PHALANX_CUDA_LIBRARY");
        if (!path) path = "libcuda.so.1";
        library = dlopen(path, RTLD_NOW);
        if (!library) give_up(std::string("no driver could be loaded: ") + dlerror());
        call("cuInit", 0u);
        int count = 0;
        call("cuDeviceGetCount", &count);
        if (count < 1) give_up("the driver is there, but it has no device");
        call("cuDeviceGet", &device, 0);
        void *context = nullptr;
        call("cuDevicePrimaryCtxRetain", &context, device);
        call("cuCtxSetCurrent", context);
        // In order with copies and fills, which go by the default stream.
        call("cuStreamCreate", &stream, 0u);
    }

    // Calls a function by its name; whatever fails ends the check, with both names.
    template <typename... Arguments> void call(const char *name, Arguments... arguments) {
        const int code = ask(name, arguments...);
        if (code == 0) return;
        const char *words = nullptr;
        ask("cuGetErrorName", code, &words);
        give_up(std::string(name) + " failed: " + (words ? words : "?") + " (" + std::to_string(code) + ")");
    }

    template <typename... Arguments> int ask(const char *name, Arguments... arguments) {
        const auto function = (int (*)(Arguments...))dlsym(library, name);
        if (!function) give_up(std::string("this driver has no ") + name);
        return function(arguments...);
    }

    void load(const char *path) {
        FILE *file = fopen(path, "rb");
        if (!file) give_up(std::string("cannot read ") + path);
        std::vector<char> image;
        char piece[65536];
        for (size_t got; (got = fread(piece, 1, sizeof piece, file)) > 0;) image.insert(image.end(), piece, piece + got);
        fclose(file);
        image.push_back(0);
        call("cuModuleLoadData", &module, (const void *)image.data());
    }

    int attribute(int which) {
        int value = 0;
        call("cuDeviceGetAttribute", &value, which, device);
        return value;
    }

    Address allocate(size_t bytes) {
        Address address = 0;
        call("cuMemAlloc_v2", &address, bytes);
        return address;
    }

    void put(Address to, const void *from, size_t bytes) {
        if (bytes) call("cuMemcpyHtoD_v2", to, from, bytes);
    }

    void get(void *to, Address from, size_t bytes) {
        if (bytes) call("cuMemcpyDtoH_v2", to, from, bytes);
    }

    void wait() { call("cuStreamSynchronize", stream); }

    template <typename Parameters> void launch(const std::string &name, const Parameters &parameters, unsigned blocks) {
        void *&function = functions[name];
        if (!function) call("cuModuleGetFunction", &function, module, name.c_str());
        // With room behind: the stand-in does not know how large they are.
        alignas(16) char room[1024] = {};
        static_assert(sizeof(Parameters) <= sizeof room, "room for all parameters");
        memcpy(room, &parameters, sizeof parameters);
        void *values[] = {room};
        call("cuLaunchKernel", function, blocks, 1u, 1u, 256u, 1u, 1u, 0u, stream, (void **)values, (void **)nullptr);
    }

    void *stream = nullptr;
    int device = 0;

  private:
    void *library = nullptr, *module = nullptr;
    std::map<std::string, void *> functions;
};
