// The kernels on the CPU, for tests: each is a function NAME(parameters, blocks, threads) that runs its whole grid, and
// NAME_bytes() says how many bytes its parameters are.
//
// A stand-in for the device: the threads of a block run one after the other, and blocks too, on the thread that calls.
// That is one of the orders in which a device may run them. Threads that meet are each a context of their own: one runs
// until it waits for the others, then the next.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include <sched.h>
#include <ucontext.h>

struct Index {
    unsigned int x;
};
static thread_local Index blockIdx, threadIdx, gridDim, blockDim;

// The threads of a block that meet.
class Block {
  public:
    template <typename Thread> static void run(const Thread &thread) {
        Block block;
        block.fibers.resize(blockDim.x);
        current = &block;
        struct Start {
            static void begin(unsigned int high, unsigned int low) {
                const auto address = (unsigned long long)high << 32 | low;
                (*(const Thread *)address)();
                current->fibers[threadIdx.x].ended = true;
            }
        };
        const auto address = (unsigned long long)&thread;
        for (Fiber &fiber : block.fibers) {
            fiber.stack.reset(new char[STACK]);
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.get();
            fiber.context.uc_stack.ss_size = STACK;
            fiber.context.uc_link = &block.scheduler;
            const auto high = (unsigned int)(address >> 32), low = (unsigned int)address;
            makecontext(&fiber.context, (void (*)())Start::begin, 2, high, low);
        }
        for (unsigned int ended = 0; ended < blockDim.x;) {
            for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) {
                swapcontext(&block.scheduler, &block.fibers[threadIdx.x].context);
            }
            ended = 0;
            for (const Fiber &fiber : block.fibers) ended += fiber.ended;
            if (ended != 0 && ended != blockDim.x) {
                fprintf(stderr, "%u of %u threads of a block ended where the others meet\n", ended, blockDim.x);
                abort();
            }
        }
    }

    static void meet() { swapcontext(&current->fibers[threadIdx.x].context, &current->scheduler); }

  private:
    static const unsigned int STACK = 64 << 10;
    struct Fiber {
        ucontext_t context;
        std::unique_ptr<char[]> stack;
        bool ended = false;
    };
    ucontext_t scheduler;
    std::vector<Fiber> fibers;
    static thread_local Block *current;
};
thread_local Block *Block::current;

static inline void meet() { Block::meet(); }

// Words that other devices, which are threads here, and the host write or read meanwhile.
static inline unsigned int observe(const unsigned int *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline void publish(unsigned int *word, unsigned int value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
static inline void wait_a_little() { sched_yield(); }

#define PHX_FN inline
#define PHX_SHARED static thread_local
#define PHX_KERNEL_BY(NAME, PARAMETERS, RUN)                                                               \
    static void NAME##_thread(const PARAMETERS &p);                                                        \
    extern "C" unsigned int NAME##_bytes() { return sizeof(PARAMETERS); }                                  \
    extern "C" void NAME(const PARAMETERS *parameters, unsigned int blocks, unsigned int threads) {        \
        gridDim.x = blocks;                                                                                \
        blockDim.x = threads;                                                                              \
        for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {                                          \
            RUN([parameters] { NAME##_thread(*parameters); });                                             \
        }                                                                                                  \
    }                                                                                                      \
    static void NAME##_thread(const PARAMETERS &p)

template <typename Thread> static void one_by_one(const Thread &thread) {
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) thread();
}

#define PHX_KERNEL(NAME, PARAMETERS) PHX_KERNEL_BY(NAME, PARAMETERS, one_by_one)
#define PHX_BLOCK_KERNEL(NAME, PARAMETERS) PHX_KERNEL_BY(NAME, PARAMETERS, Block::run)

#include "../phalanx.cu"
