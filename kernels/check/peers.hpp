// Two processes on one device, each with the other's memory mapped by CUDA IPC; and a rank that waits for nobody.
#pragma once
#include "bits.hpp"

#include <csignal>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const unsigned PEER_BLOCKS = 4;
static const size_t PEER_COUNT = 300007;

// What one rank maps of another: input, stage and flags, one after the other.
static const size_t STAGE_AT = 2 << 20, FLAGS_AT = 4 << 20, PEER_BYTES = FLAGS_AT + 4096;

static float peer_input(unsigned rank, size_t at) { return (float)((at * 7 + rank * 13) % 101); }

// Memory of the host that the device reads while a kernel runs.
struct Watched {
    explicit Watched(Driver &driver) {
        void *pointer = nullptr;
        driver.call("cuMemHostAlloc", &pointer, (size_t)4096, 3u);
        here = (u32 *)pointer;
        *here = 0;
        driver.call("cuMemHostGetDevicePointer_v2", &there, pointer, 0u);
    }
    u32 *here;
    Address there;
};

static void exchange(int channel, const void *own, void *other, size_t bytes) {
    if (write(channel, own, bytes) != (ssize_t)bytes) give_up("the other rank is gone");
    for (size_t got = 0; got < bytes;) {
        const ssize_t more = read(channel, (char *)other + got, bytes - got);
        if (more <= 0) give_up("the other rank is gone");
        got += more;
    }
}

// One of the two ranks; it ends with 0 if every element was right.
static int run_peer(Driver &driver, unsigned rank, int channel) {
    const Address own = driver.allocate(PEER_BYTES), target = driver.allocate(STAGE_AT), status = driver.allocate(64);
    driver.call("cuMemsetD8_v2", own, (unsigned char)0, PEER_BYTES);
    driver.call("cuMemsetD8_v2", status, (unsigned char)0, (size_t)64);
    std::vector<float> input(PEER_COUNT), result(PEER_COUNT);
    for (size_t at = 0; at < PEER_COUNT; ++at) input[at] = peer_input(rank, at);
    driver.put(own, input.data(), PEER_COUNT * sizeof(float));
    driver.call("cuCtxSynchronize");
    MemoryHandle handle, others;
    driver.call("cuIpcGetMemHandle", &handle, own);
    exchange(channel, &handle, &others, sizeof handle);
    Address mapped = 0;
    driver.call("cuIpcOpenMemHandle_v2", &mapped, others, 1u);
    Watched abort_word(driver);
    PeerParameters p = {};
    p.target = (void *)target, p.abort = (const u32 *)abort_word.there, p.status = (u32 *)status;
    p.count = PEER_COUNT, p.finish = {2, 1.0}, p.rank = rank, p.ranks = 2;
    for (unsigned peer = 0; peer < 2; ++peer) {
        char *const base = (char *)(peer == rank ? own : mapped);
        p.inputs[peer] = base, p.stages[peer] = base + STAGE_AT, p.flags[peer] = (u32 *)(base + FLAGS_AT);
    }
    size_t wrong = 0;
    u32 gave_up = 0;
    for (const char *name : {"phx_peer_one_shot_f32", "phx_peer_two_shot_f32"}) {
        driver.call("cuMemsetD8_v2", target, (unsigned char)0xff, STAGE_AT);
        driver.call("cuCtxSynchronize");
        driver.launch(name, p, PEER_BLOCKS);
        driver.wait();
        p.meetings += name[9] == 'o' ? 2 : 3;
        driver.get(result.data(), target, PEER_COUNT * sizeof(float));
        for (size_t at = 0; at < PEER_COUNT; ++at) {
            wrong += result[at] != (peer_input(0, at) + peer_input(1, at)) / 2.0f;
        }
        driver.get(&gave_up, status, sizeof gave_up);
        wrong += gave_up;
    }
    // Nobody frees what the other may still read.
    char done = 0;
    exchange(channel, "d", &done, 1);
    driver.call("cuIpcCloseMemHandle", mapped);
    exchange(channel, "d", &done, 1);
    if (wrong) fprintf(stderr, "rank %u: %zu elements are wrong\n", rank, wrong);
    return wrong != 0;
}

// Starts both ranks as processes of their own. `self` is this program, `image` the compiled kernels.
static Tally check_processes(const char *self, const char *image) {
    Tally tally;
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) give_up("no socket pair could be had");
    pid_t ranks[2];
    for (unsigned rank = 0; rank < 2; ++rank) {
        ranks[rank] = fork();
        if (ranks[rank] < 0) give_up("no process could be had");
        if (ranks[rank] == 0) {
            close(ends[1 - rank]);
            execl(self, self, image, "peer", rank ? "1" : "0", std::to_string(ends[rank]).c_str(), (char *)nullptr);
            _exit(127);
        }
    }
    close(ends[0]), close(ends[1]);
    for (unsigned ended = 0; ended < 2; ++ended) {
        int status = 0;
        const pid_t process = wait(&status);
        const unsigned rank = process == ranks[1];
        tally.add(status == 0, "rank " + std::to_string(rank) + " ended with wait status " + std::to_string(status));
        // The other one may wait for it for ever.
        if (status != 0 && ended == 0) kill(ranks[1 - rank], SIGKILL);
    }
    return tally;
}

// A kernel that waits for a rank that never comes runs on, until it is told to give up; then it says so.
static Tally check_abort(Driver &driver) {
    Tally tally;
    for (const char *name : {"phx_peer_meet", "phx_peer_one_shot_f32", "phx_peer_two_shot_f32"}) {
        const Address memory = driver.allocate(PEER_BYTES);
        driver.call("cuMemsetD8_v2", memory, (unsigned char)0, PEER_BYTES);
        driver.call("cuCtxSynchronize");
        Watched abort_word(driver);
        PeerParameters p = {};
        p.target = (void *)memory, p.abort = (const u32 *)abort_word.there, p.status = (u32 *)(memory + FLAGS_AT + 2048);
        p.count = 1000, p.finish = {1, 1.0}, p.ranks = 2;
        for (unsigned peer = 0; peer < 2; ++peer) {
            p.inputs[peer] = (void *)memory, p.stages[peer] = (void *)(memory + STAGE_AT);
            p.flags[peer] = (u32 *)(memory + FLAGS_AT + 1024 * peer);
        }
        driver.launch(name, p, PEER_BLOCKS);
        // That it still waits can only be seen by giving it the time to end wrongly.
        usleep(100000);
        const bool waited = driver.ask("cuStreamQuery", driver.stream) == Driver::NOT_READY;
        __atomic_store_n(abort_word.here, 1u, __ATOMIC_RELEASE);
        driver.wait();
        u32 status = 0;
        driver.get(&status, memory + FLAGS_AT + 2048, sizeof status);
        tally.add(waited && status == 1, std::string(name) + (waited ? ": its status does not say so" : " did not wait"));
    }
    return tally;
}
