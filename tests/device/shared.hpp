// Device memory of the stand-in: it lies in files without a name, so that other processes can map it, as by CUDA IPC.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

struct Handle { int process, file, device; size_t bytes; char rest[40]; };
static_assert(sizeof(Handle) == 64, "as large as the driver's");
enum : Code { OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, PEER_ACCESS_ALREADY_ENABLED = 704 };

static void *map_file(int file, size_t bytes) {
    void *start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return start == MAP_FAILED ? nullptr : start;
}

CALL(cuMemAlloc_v2)(uintptr_t *start, size_t bytes) {
    IN_CONTEXT;
    int file = memfd_create("device memory", MFD_CLOEXEC);
    void *memory = file >= 0 && ftruncate(file, (off_t)bytes) == 0 ? map_file(file, bytes) : nullptr;
    if (!memory) return OUT_OF_MEMORY;
    std::memset(memory, 0xa5, bytes);
    *start = (uintptr_t)memory;
    add(*start, bytes, (int)current.back() - 1, file);
    return OK;
}
CALL(cuMemFree_v2)(uintptr_t start) {
    if (current.empty()) return INVALID_CONTEXT;
    synchronize((int)current.back() - 1);
    Memory was;
    {
        std::lock_guard<std::mutex> hold(global);
        auto found = memory.find(start);
        if (found == memory.end() || found->second.device < 0 || found->second.file < 0) return INVALID_VALUE;
        was = found->second;
    }
    if (Code code = take(start)) return code;
    munmap((void *)start, was.bytes);
    close(was.file);
    return OK;
}
CALL(cuCtxEnablePeerAccess)(void *context, unsigned) {
    IN_CONTEXT;
    static std::map<std::pair<intptr_t, intptr_t>, bool> enabled;
    if ((intptr_t)context == current.back()) return INVALID_DEVICE;
    std::lock_guard<std::mutex> hold(global);
    bool &is = enabled[{current.back(), (intptr_t)context}];
    return is ? (Code)PEER_ACCESS_ALREADY_ENABLED : (is = true, (Code)OK);
}
CALL(cuIpcGetMemHandle)(Handle *handle, uintptr_t start) {
    IN_CONTEXT;
    std::lock_guard<std::mutex> hold(global);
    auto found = memory.find(start);
    if (found == memory.end() || found->second.file < 0) return INVALID_VALUE;
    *handle = {(int)getpid(), found->second.file, found->second.device, found->second.bytes, {}};
    return OK;
}
CALL(cuIpcOpenMemHandle_v2)(uintptr_t *start, Handle handle, unsigned) {
    IN_CONTEXT;
    if (handle.process == (int)getpid()) return INVALID_CONTEXT;
    std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
    int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    void *memory = file < 0 ? nullptr : map_file(file, handle.bytes);
    if (file >= 0) close(file);
    if (!memory) return INVALID_VALUE;
    *start = (uintptr_t)memory;
    add(*start, handle.bytes, handle.device);
    return OK;
}
CALL(cuIpcCloseMemHandle)(uintptr_t start) {
    if (current.empty()) return INVALID_CONTEXT;
    synchronize((int)current.back() - 1);
    Memory was;
    {
        std::lock_guard<std::mutex> hold(global);
        auto found = memory.find(start);
        if (found == memory.end() || found->second.device < 0 || found->second.file >= 0) return INVALID_VALUE;
        was = found->second;
    }
    if (Code code = take(start)) return code;
    munmap((void *)start, was.bytes);
    return OK;
}
