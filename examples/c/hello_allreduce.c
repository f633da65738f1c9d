/*
 * Every rank adds its numbers to those of the others and checks the sums, once waiting for the result, once computing
 * meanwhile, and once in memory that the others can read.
 *
 *     cargo build --release -p phalanx-c
 *     cargo run --release -p phalanx-c --bin phalanx-header -- target/include
 *     cc -o hello_allreduce examples/c/hello_allreduce.c -Itarget/include -Ltarget/release -lphalanx_c
 *     LD_LIBRARY_PATH=target/release phalanx run -np 2 ./hello_allreduce
 */
#include <phalanx.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT 1000
#define LONG_COUNT (100 * COUNT)

static void check(phx_status_t status, const char *what)
{
    if (status != PHX_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, phx_status_name(status), phx_last_error());
        exit(1);
    }
}

static void expect(const float *found, float step, const char *what)
{
    for (int i = 0; i < COUNT; i++) {
        if (found[i] != step * (float)i) {
            fprintf(stderr, "%s: element %d is %g, expected %g\n", what, i, found[i], step * (float)i);
            exit(1);
        }
    }
}

int main(void)
{
    phx_comm_t *comm;
    check(phx_init(&comm), "phx_init");
    int64_t rank = phx_comm_rank(comm), size = phx_comm_size(comm);

    /* Rank r has (r + 1) i at place i, so that the sum is i * size * (size + 1) / 2: exact in a float. */
    float mine[COUNT], sums[COUNT];
    for (int i = 0; i < COUNT; i++)
        mine[i] = (float)((rank + 1) * i);
    check(phx_allreduce(comm, mine, sums, COUNT, PHX_F32, PHX_SUM), "phx_allreduce");
    expect(sums, (float)(size * (size + 1) / 2), "sum");

    /* In place, with a handle; there would be work to do instead of polling. */
    phx_handle_t *handle;
    check(phx_iallreduce(comm, PHX_IN_PLACE, mine, COUNT, PHX_F32, PHX_MAX, &handle), "phx_iallreduce");
    phx_status_t status = phx_poll(handle);
    check(status == PHX_PENDING ? phx_wait(handle) : status, "phx_wait");
    phx_handle_free(handle);
    expect(mine, (float)size, "largest");

    /* In memory that the other ranks of this host read where it is, which saves long calls their copies. */
    phx_buffer_t *buffer;
    check(phx_alloc(comm, LONG_COUNT, PHX_F32, &buffer), "phx_alloc");
    float *numbers = phx_buffer_data(buffer);
    for (int i = 0; i < LONG_COUNT; i++)
        numbers[i] = (float)(i % COUNT);
    check(phx_allreduce(comm, PHX_IN_PLACE, numbers, LONG_COUNT, PHX_F32, PHX_SUM), "phx_allreduce");
    for (int i = 0; i < LONG_COUNT; i += COUNT)
        expect(numbers + i, (float)size, "sum in shared memory");
    phx_buffer_free(buffer);

    printf("rank %d of %d: %d sums are right\n", (int)rank, (int)size, 2 * COUNT + LONG_COUNT);
    check(phx_comm_shutdown(comm), "phx_comm_shutdown");
    phx_comm_free(comm);
    return 0;
}
