// A stand-in for NCCL, whose ranks are threads of one process with devices and streams of the stand-in of the driver
// (driver.cpp). Collectives are done on the streams, in rank order, with NCCL's roundings: halves after every step,
// averages by multiplying first. Nothing blocks: what was begun is in progress for some polls, and work is on its stream
// only then. Ranks that give one another different calls end the process: NCCL would hang or spoil memory.
//
// PHALANX_TEST_NCCL_VERSION=CODE               the version; 22703 if not set.
// PHALANX_TEST_NCCL_FAIL=FUNCTION:N:CODE:RANK  the N-th call of FUNCTION on RANK, counted from 1, gives CODE.
// PHALANX_TEST_NCCL_HANG=N:RANK                the N-th collective of RANK does not end on its device, once.
// PHALANX_TEST_NCCL_NOTICES=1                  work that waits for a rank which has given up makes ncclRemoteError.
// phx_nccl_calls(FUNCTION)                     how often FUNCTION was called, by all ranks.
// phx_nccl_live()                              how many communicators there are.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

extern "C" void phx_stand_in_put(void *stream, void (*what)(void *), void *with);
extern "C" int phx_stand_in_device();

enum Code { SUCCESS = 0, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { SUM, PRODUCT, MAX, MIN, AVERAGE };
constexpr int POLLS = 3; // in progress for so many

struct Id { char bytes[128]; };
struct Config { size_t size; unsigned magic, version; int blocking; }; // what it begins with

struct Call {
    std::string what;
    size_t count;
    int type, op, root;
    bool operator==(const Call &other) const {
        return what == other.what && count == other.count && type == other.type && op == other.op && root == other.root;
    }
};
struct Meeting { // one collective, of all ranks
    Call call;
    int arrived = 0, left = 0;
    std::vector<std::vector<std::vector<char>>> inputs; // by rank, then by whom they are for
};
struct World {
    std::string name;
    std::mutex lock;
    std::condition_variable changed;
    int size = 0;
    std::map<int, int> devices; // by rank
    std::map<uint64_t, std::shared_ptr<Meeting>> meetings;
    std::map<std::pair<int, int>, std::deque<std::vector<char>>> sent; // from whom to whom
    int finalized = 0, gone = 0;
};
struct Comm {
    std::shared_ptr<World> world;
    int rank, polls = POLLS;
    bool started = false, aborted = false, finalized = false, revoked = false;
    uint64_t next = 0;
    std::shared_ptr<Comm> child; // that is being made of it,
    Comm **made = nullptr;       // and where it is told when it is
    int running = 0; // on streams
    std::deque<std::pair<void *, std::function<void()> *>> waiting;
};

static std::mutex global;
static std::map<std::string, std::shared_ptr<World>> worlds;
static std::map<Comm *, std::shared_ptr<Comm>> comms;
static std::map<std::string, long> calls;
static std::map<std::pair<std::string, int>, long> calls_of;

static int count_call(const char *function, int rank) {
    static const char *wish = std::getenv("PHALANX_TEST_NCCL_FAIL");
    std::lock_guard<std::mutex> hold(global);
    ++calls[function];
    long count = ++calls_of[{function, rank}];
    char name[64];
    long number;
    int code, whose;
    if (!wish || std::sscanf(wish, "%63[^:]:%ld:%d:%d", name, &number, &code, &whose) != 4) return SUCCESS;
    return name == std::string(function) && number == count && whose == rank ? code : SUCCESS;
}
#define COUNT(rank) do { if (int code = count_call(__func__, rank)) return code; } while (0)

extern "C" long phx_nccl_calls(const char *function) {
    std::lock_guard<std::mutex> hold(global);
    return calls[function];
}
extern "C" long phx_nccl_live() {
    std::lock_guard<std::mutex> hold(global);
    return (long)comms.size();
}

// Elements as they are calculated with: halves in float, rounded after every step.
static float widen(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}
static uint16_t narrow(float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, 4);
    return (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}
struct Brain { // bf16
    uint16_t bits;
    Brain(float value = 0) : bits(narrow(value)) {}
    operator float() const { return widen(bits); }
};

static size_t width(int type) {
    static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return widths[type];
}
template <class T> static T both(T one, T other, int op) {
    switch (op) {
    case PRODUCT: return (T)(one * other);
    case MAX: return one > other ? one : other;
    case MIN: return one < other ? one : other;
    default: return (T)(one + other);
    }
}
template <class T> static void combine(const Meeting &meeting, size_t from, size_t count, char *out) {
    int size = (int)meeting.inputs.size(), op = meeting.call.op;
    for (size_t i = 0; i < count; i++) {
        T sum{};
        for (int rank = 0; rank < size; rank++) {
            T value;
            std::memcpy(&value, meeting.inputs[rank][0].data() + (from + i) * sizeof(T), sizeof(T));
            if (op == AVERAGE) value = (T)(value * (T)(1.0 / size));
            sum = rank == 0 ? value : both<T>(sum, value, op);
        }
        std::memcpy(out + i * sizeof(T), &sum, sizeof(T));
    }
}
static void combine(const Meeting &meeting, size_t from, size_t count, char *out) {
    switch (meeting.call.type) {
    case 0: return combine<int8_t>(meeting, from, count, out);
    case 1: return combine<uint8_t>(meeting, from, count, out);
    case 2: return combine<int32_t>(meeting, from, count, out);
    case 3: return combine<uint32_t>(meeting, from, count, out);
    case 4: return combine<int64_t>(meeting, from, count, out);
    case 5: return combine<uint64_t>(meeting, from, count, out);
    case 6: return combine<_Float16>(meeting, from, count, out);
    case 7: return combine<float>(meeting, from, count, out);
    case 8: return combine<double>(meeting, from, count, out);
    case 9: return combine<Brain>(meeting, from, count, out);
    }
}

// What a rank brings to a meeting, for each it is for, and what it does with what all have brought.
using Bring = std::vector<std::pair<const void *, size_t>>;
using Take = std::function<void(const Meeting &)>;

static void meet(Comm *comm, uint64_t number, const Call &call, const Bring &bring, const Take &take) {
    static const char *wish = std::getenv("PHALANX_TEST_NCCL_HANG");
    World &world = *comm->world;
    std::shared_ptr<Meeting> meeting;
    bool complete;
    {
        std::unique_lock<std::mutex> hold(world.lock);
        long hanging;
        int whose;
        static std::atomic<bool> hung{false};
        bool hangs = wish && std::sscanf(wish, "%ld:%d", &hanging, &whose) == 2 && whose == comm->rank
            && hanging == (long)number + 1 && !hung.exchange(true);
        if (hangs) world.changed.wait(hold, [&] { return comm->aborted; });
        auto &place = world.meetings[number];
        if (!place) {
            place = std::make_shared<Meeting>();
            place->call = call;
            place->inputs.resize(world.size);
        }
        meeting = place;
        if (!comm->aborted) {
            if (!(meeting->call == call)) {
                const char *ours = call.what.c_str(), *theirs = meeting->call.what.c_str();
                std::fprintf(stderr, "NCCL was given different calls: %s and %s\n", ours, theirs);
                std::abort();
            }
            auto &inputs = meeting->inputs[comm->rank];
            for (auto &[start, bytes] : bring) inputs.emplace_back((char *)start, (char *)start + bytes);
            meeting->arrived++;
            world.changed.notify_all();
            world.changed.wait(hold, [&] { return meeting->arrived == world.size || comm->aborted; });
        }
        complete = meeting->arrived == world.size;
    }
    if (complete) take(*meeting);
    std::lock_guard<std::mutex> hold(world.lock);
    if (++meeting->left == world.size) world.meetings.erase(number);
    comm->running--;
    world.changed.notify_all();
}

// What is called between the start and the end of a group.
struct Group {
    int depth = 0;
    bool began = false; // something that is on its way by itself
    Comm *comm = nullptr;
    void *stream = nullptr;
    std::vector<std::tuple<int, const void *, size_t>> sends; // to whom
    std::vector<std::tuple<int, void *, size_t>> places;      // from whom
};
static thread_local Group group;

static int put(Comm *comm, void *stream, std::function<void()> work) {
    if (!comm->started || comm->aborted || comm->revoked || comm->finalized) return INVALID_USAGE;
    comm->waiting.emplace_back(stream, new std::function<void()>(std::move(work)));
    comm->polls = POLLS;
    group.began = group.depth > 0;
    return IN_PROGRESS;
}
static int begin(Comm *comm, void *stream, Call call, Bring bring, Take take) {
    uint64_t number = comm->next++;
    return put(comm, stream, [=] { meet(comm, number, call, bring, take); });
}
static void run(void *work) {
    auto *what = (std::function<void()> *)work;
    (*what)();
    delete what;
}

#define CALL(name) extern "C" int name
CALL(ncclGetVersion)(int *version) {
    const char *wish = std::getenv("PHALANX_TEST_NCCL_VERSION");
    *version = wish ? std::atoi(wish) : 22703;
    return SUCCESS;
}
CALL(ncclGetUniqueId)(Id *id) {
    COUNT(0);
    static std::atomic<int> number{0};
    std::memset(id->bytes, 0x77, sizeof id->bytes);
    std::snprintf(id->bytes, sizeof id->bytes, "world %d", ++number);
    return SUCCESS;
}
extern "C" const char *ncclGetErrorString(int) { return "an error of the stand-in"; }
extern "C" const char *ncclGetLastError(void *) { return "the stand-in was asked to fail"; }
// A communicator of `world`, which begins when as many are there. Of a child the parent says when that is.
static std::shared_ptr<Comm> enter(const std::string &name, int size, int rank) {
    std::lock_guard<std::mutex> hold(global);
    std::shared_ptr<World> &world = worlds[name];
    if (!world) world = std::make_shared<World>();
    auto comm = std::make_shared<Comm>();
    comm->world = world;
    comm->rank = rank;
    comms[comm.get()] = comm;
    std::lock_guard<std::mutex> inside(world->lock);
    world->name = name;
    world->size = size;
    world->devices[rank] = phx_stand_in_device();
    return comm;
}
static bool is_wrong(Config *config) {
    return config->magic != 0xcafebeef || config->blocking != 0 || phx_stand_in_device() < 0;
}
CALL(ncclCommInitRankConfig)(Comm **made, int size, Id id, int rank, Config *config) {
    *made = nullptr;
    COUNT(rank);
    if (is_wrong(config)) return INVALID_ARGUMENT;
    *made = enter(std::string(id.bytes, sizeof id.bytes), size, rank).get();
    return IN_PROGRESS;
}
// Of what waits for others or is not needed any more nothing can be made.
static bool is_busy(Comm *comm) {
    std::lock_guard<std::mutex> hold(comm->world->lock);
    return !comm->started || comm->aborted || comm->finalized || comm->running > 0 || !comm->waiting.empty();
}
// As the library does, the child is told only when it is made, and it is the parent that is asked about it.
CALL(ncclCommShrink)(Comm *comm, int *without, int count, Comm **made, Config *config, int) {
    *made = nullptr;
    COUNT(comm->rank);
    if (is_wrong(config) || is_busy(comm) || count < 1) return INVALID_ARGUMENT;
    std::string name = comm->world->name + " without";
    int rank = comm->rank;
    for (int index = 0; index < count; index++) {
        if (without[index] == comm->rank) return INVALID_ARGUMENT;
        name += " " + std::to_string(without[index]);
        rank -= without[index] < comm->rank;
    }
    comm->child = enter(name, comm->world->size - count, rank);
    comm->made = made;
    comm->polls = POLLS;
    return IN_PROGRESS;
}
CALL(ncclCommGetUniqueId)(Comm *comm, Id *id) {
    COUNT(comm->rank);
    if (is_busy(comm) || comm->revoked) return INVALID_USAGE;
    std::memset(id->bytes, 0, sizeof id->bytes);
    std::snprintf(id->bytes, sizeof id->bytes, "%.100s and more", comm->world->name.c_str());
    return SUCCESS;
}
// Here the child is told at once, and asked about itself. All ranks of the parent must take part.
CALL(ncclCommGrow)(Comm *comm, int size, const Id *id, int rank, Comm **made, Config *config) {
    *made = nullptr;
    COUNT(comm ? comm->rank : rank);
    if (is_wrong(config)) return INVALID_ARGUMENT;
    if (!comm && (!id || rank < 0 || rank >= size)) return INVALID_ARGUMENT;
    if (comm && (is_busy(comm) || comm->revoked || rank != -1 || size <= comm->world->size)) return INVALID_ARGUMENT;
    if (comm && (comm->rank == 0) != (id != nullptr)) return INVALID_ARGUMENT;
    Id own;
    if (comm) std::snprintf(own.bytes, sizeof own.bytes, "%.100s and more", comm->world->name.c_str());
    *made = enter(comm ? own.bytes : id->bytes, size, comm ? comm->rank : rank).get();
    return IN_PROGRESS;
}
CALL(ncclCommGetAsyncError)(Comm *comm, int *state) {
    static const bool notices = std::getenv("PHALANX_TEST_NCCL_NOTICES");
    *state = SUCCESS;
    if (int code = count_call(__func__, comm->rank)) {
        *state = code;
        return SUCCESS;
    }
    World &child = comm->child ? *comm->child->world : *comm->world;
    bool is_short;
    {
        std::lock_guard<std::mutex> hold(child.lock);
        is_short = (!comm->started || comm->child) && (int)child.devices.size() < child.size;
    }
    std::unique_lock<std::mutex> hold(comm->world->lock);
    // The ranks of a host wait for each other.
    bool is_ending = comm->finalized && comm->world->finalized < comm->world->size;
    bool is_stopping = comm->revoked && comm->running > 0;
    if (is_short || is_ending || is_stopping || comm->polls > 0) {
        if (!is_short && !is_ending) comm->polls--;
        *state = IN_PROGRESS;
        return SUCCESS;
    }
    if (comm->revoked) comm->aborted = false;
    if (notices && comm->world->gone > 0 && comm->running > 0) {
        *state = REMOTE_ERROR;
        return SUCCESS;
    }
    if (comm->child) {
        comm->child->started = true;
        comm->child->polls = 0;
        *comm->made = comm->child.get();
        comm->child.reset();
    }
    if (!comm->started) {
        std::set<int> different;
        for (auto &[rank, device] : comm->world->devices) different.insert(device);
        comm->started = true;
        if ((int)different.size() < comm->world->size) *state = INVALID_USAGE;
    }
    for (; !comm->waiting.empty(); comm->waiting.pop_front()) {
        comm->running++;
        phx_stand_in_put(comm->waiting.front().first, run, comm->waiting.front().second);
    }
    return SUCCESS;
}
CALL(ncclCommFinalize)(Comm *comm) {
    COUNT(comm->rank);
    if (comm->revoked) return INVALID_USAGE;
    std::lock_guard<std::mutex> hold(comm->world->lock);
    comm->finalized = true;
    comm->world->finalized++;
    comm->polls = POLLS;
    return IN_PROGRESS;
}
// Ends what is in flight.
static void stop(Comm *comm, bool waits) {
    std::unique_lock<std::mutex> hold(comm->world->lock);
    comm->aborted = true;
    if (!comm->finalized) comm->world->gone++;
    comm->world->changed.notify_all();
    if (waits) comm->world->changed.wait(hold, [&] { return comm->running == 0; });
    for (auto &[stream, work] : comm->waiting) delete work;
    comm->waiting.clear();
}
CALL(ncclCommRevoke)(Comm *comm, int flags) {
    COUNT(comm->rank);
    if (flags != 0 || comm->revoked || comm->finalized) return INVALID_ARGUMENT;
    stop(comm, false);
    comm->revoked = true;
    comm->polls = POLLS;
    return IN_PROGRESS;
}
CALL(ncclCommAbort)(Comm *comm) {
    count_call(__func__, comm->rank);
    stop(comm, true);
    std::lock_guard<std::mutex> hold(global);
    if (comm->child) comms.erase(comm->child.get()); // it was not made yet
    comms.erase(comm);
    return SUCCESS;
}

CALL(ncclAllReduce)(const void *from, void *to, size_t count, int type, int op, Comm *comm, void *stream) {
    COUNT(comm->rank);
    auto take = [=](const Meeting &all) { combine(all, 0, count, (char *)to); };
    return begin(comm, stream, {__func__, count, type, op, 0}, {{from, count * width(type)}}, take);
}
CALL(ncclReduce)(const void *from, void *to, size_t count, int type, int op, int root, Comm *comm, void *stream) {
    COUNT(comm->rank);
    auto take = [=](const Meeting &all) { if (comm->rank == root) combine(all, 0, count, (char *)to); };
    return begin(comm, stream, {__func__, count, type, op, root}, {{from, count * width(type)}}, take);
}
CALL(ncclBroadcast)(const void *from, void *to, size_t count, int type, int root, Comm *comm, void *stream) {
    COUNT(comm->rank);
    auto take = [=](const Meeting &all) { std::memcpy(to, all.inputs[root][0].data(), count * width(type)); };
    size_t bytes = comm->rank == root ? count * width(type) : 0;
    return begin(comm, stream, {__func__, count, type, 0, root}, {{from, bytes}}, take);
}
CALL(ncclAllGather)(const void *from, void *to, size_t count, int type, Comm *comm, void *stream) {
    COUNT(comm->rank);
    size_t bytes = count * width(type);
    auto take = [=](const Meeting &all) {
        char *place = (char *)to;
        for (size_t rank = 0; rank < all.inputs.size(); rank++, place += bytes)
            std::memcpy(place, all.inputs[rank][0].data(), bytes);
    };
    return begin(comm, stream, {__func__, count, type, 0, 0}, {{from, bytes}}, take);
}
CALL(ncclReduceScatter)(const void *from, void *to, size_t count, int type, int op, Comm *comm, void *stream) {
    COUNT(comm->rank);
    size_t bytes = count * width(type) * comm->world->size;
    auto take = [=](const Meeting &all) { combine(all, comm->rank * count, count, (char *)to); };
    return begin(comm, stream, {__func__, count, type, op, 0}, {{from, bytes}}, take);
}

// Sends and receives, between the start and the end of a group. What is sent waits in the world until it is received.
static void pass(Comm *comm, const Group &what) {
    World &world = *comm->world;
    std::unique_lock<std::mutex> hold(world.lock);
    for (auto &[peer, from, bytes] : what.sends)
        world.sent[{comm->rank, peer}].emplace_back((char *)from, (char *)from + bytes);
    world.changed.notify_all();
    for (auto &[peer, to, bytes] : what.places) {
        auto &queue = world.sent[{peer, comm->rank}];
        world.changed.wait(hold, [&, &queue = queue] { return comm->aborted || !queue.empty(); });
        if (queue.empty()) break;
        if (queue.front().size() != bytes) {
            std::fprintf(stderr, "NCCL was given a receive of %zu bytes for %zu\n", bytes, queue.front().size());
            std::abort();
        }
        std::memcpy(to, queue.front().data(), bytes);
        queue.pop_front();
    }
    comm->running--;
    world.changed.notify_all();
}
static int join(Comm *comm, void *stream) {
    if (group.depth == 0) return INVALID_USAGE;
    group.comm = comm, group.stream = stream;
    return SUCCESS;
}
CALL(ncclGroupStart)() { count_call(__func__, 0); group.depth++; return SUCCESS; }
CALL(ncclSend)(const void *from, size_t count, int type, int peer, Comm *comm, void *stream) {
    COUNT(comm->rank);
    if (int code = join(comm, stream)) return code;
    group.sends.emplace_back(peer, from, count * width(type));
    return SUCCESS;
}
CALL(ncclRecv)(void *to, size_t count, int type, int peer, Comm *comm, void *stream) {
    if (int code = join(comm, stream)) return code;
    group.places.emplace_back(peer, to, count * width(type));
    return SUCCESS;
}
CALL(ncclGroupEnd)() {
    Group ended = std::move(group);
    group = Group{};
    if (!ended.comm) return ended.began ? IN_PROGRESS : SUCCESS;
    return put(ended.comm, ended.stream, [=] { pass(ended.comm, ended); });
}
