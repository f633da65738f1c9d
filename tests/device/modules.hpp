// Kernels of the stand-in: a module is an ELF library with functions NAME(parameters, blocks, threads) and
// NAME_bytes(), as kernels/shim/cpu.cpp makes them; a launch runs on its stream.
#pragma once

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

struct Function { void (*run)(const void *, unsigned, unsigned); unsigned bytes; };
struct Module {
    void *library;
    std::mutex lock;
    std::map<std::string, Function> functions;
};
enum : Code { INVALID_IMAGE = 200, NOT_FOUND = 500, INVALID_CONFIGURATION = 9 };

CALL(cuModuleLoadData)(void **module, const void *image) {
    IN_CONTEXT;
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
    if (std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return INVALID_IMAGE;
    // Its table of sections stands last.
    size_t bytes = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
    int file = memfd_create("module", MFD_CLOEXEC);
    if (file < 0 || write(file, image, bytes) != (ssize_t)bytes) return INVALID_IMAGE;
    void *library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
    close(file);
    if (!library) return INVALID_IMAGE;
    Module *made = new Module;
    made->library = library;
    *module = made;
    live++;
    return OK;
}
CALL(cuModuleUnload)(void *module) {
    if (current.empty()) return INVALID_CONTEXT;
    synchronize((int)current.back() - 1);
    dlclose(((Module *)module)->library);
    delete (Module *)module;
    live--;
    return OK;
}
CALL(cuModuleGetFunction)(void **function, void *module, const char *name) {
    IN_CONTEXT;
    Module *of = (Module *)module;
    std::lock_guard<std::mutex> hold(of->lock);
    void *run = dlsym(of->library, name), *bytes = dlsym(of->library, (std::string(name) + "_bytes").c_str());
    if (!run || !bytes) return NOT_FOUND;
    Function &found = of->functions[name];
    found = {(void (*)(const void *, unsigned, unsigned))run, ((unsigned (*)())bytes)()};
    *function = &found;
    return OK;
}
CALL(cuLaunchKernel)(void *function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                     unsigned, void *stream, void **parameters, void **) {
    IN_CONTEXT;
    static const char *const stall = std::getenv("PHALANX_TEST_STALL");
    if (stall && phx_stand_in_calls("cuLaunchKernel") == std::atol(stall)) phx_stand_in_stop(stream);
    if (!blocks || y != 1 || z != 1 || !threads || threads > 1024 || ty != 1 || tz != 1) return INVALID_CONFIGURATION;
    Function one = *(Function *)function;
    // Read before the call returns, and laid so that every type can be read from it.
    std::shared_ptr<void> copy(std::aligned_alloc(64, (one.bytes + 63) / 64 * 64), std::free);
    std::memcpy(copy.get(), parameters[0], one.bytes);
    stream_of(stream)->put([=] { one.run(copy.get(), blocks, threads); });
    return OK;
}
