// Times a collective of MPI on floats: prints, for each size given, the bytes and the median and 99th percentile of the
// slowest rank's time in microseconds.
//
//   mpicc -O2 mpi_collectives.c -o mpi_collectives && mpirun -np 2 ./mpi_collectives allreduce 1000 8 4096
//
// The second argument is what one size may take, in milliseconds. Bytes mean, iterations are, and between them is done
// what `phalanx bench` says: up to 64 KiB another input each time, and a look at every element of every result.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SALTS = 3, ALWAYS_CHECKED = 65536, FEWEST = 5, ROOT = 0 };
enum kind { ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, REDUCE_SCATTER, ALLTOALL, BARRIER, KINDS };

static const char *const names[KINDS] = {"allreduce",      "reduce",   "broadcast", "allgather",
                                         "reduce_scatter", "alltoall", "barrier"};

struct job {
    enum kind kind;
    int rank, ranks;
    size_t total, block; // elements of the larger buffer, and of one rank's part of it
    size_t input, answer; // elements that this rank puts in, and gets
};

static void fail(const char *why) {
    fprintf(stderr, "%s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) fail("out of memory");
    return memory;
}

static struct job plan(enum kind kind, size_t bytes) {
    struct job job = {.kind = kind};
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.ranks);
    size_t elements = bytes / sizeof(float), ranks = (size_t)job.ranks;
    int blocks = kind == ALLGATHER || kind == REDUCE_SCATTER || kind == ALLTOALL;
    job.block = blocks ? elements / ranks : elements;
    if (!job.block) job.block = 1;
    job.total = blocks ? job.block * ranks : job.block;
    if (kind == BARRIER) return job;
    job.input = kind == ALLGATHER ? job.block : job.total;
    job.answer = kind == REDUCE_SCATTER ? job.block : job.total;
    if (kind == REDUCE && job.rank != ROOT) job.answer = 0;
    if (kind == BROADCAST && job.rank != ROOT) job.input = 0;
    return job;
}

// What a rank holds at an index, where elements are combined and where they only move.
static float addend(int rank, size_t index, int salt) { return (float)((index + (size_t)salt) % 7) + (float)rank; }
static float moved(int source, size_t index, int salt) {
    return (float)((index * 31 + (size_t)source * 7 + (size_t)salt * 13) % 251);
}

static int combines(enum kind kind) { return kind == ALLREDUCE || kind == REDUCE || kind == REDUCE_SCATTER; }

static float input_of(const struct job *job, size_t index, int salt) {
    return combines(job->kind) ? addend(job->rank, index, salt) : moved(job->rank, index, salt);
}

static float answer_of(const struct job *job, size_t index, int salt) {
    size_t own = (size_t)job->rank * job->block;
    if (combines(job->kind)) {
        if (job->kind == REDUCE_SCATTER) index += own;
        return addend(0, index, salt) * (float)job->ranks + (float)(job->ranks * (job->ranks - 1) / 2);
    }
    int source = (int)(index / job->block);
    if (job->kind == ALLGATHER) return moved(source, index % job->block, salt);
    if (job->kind == ALLTOALL) return moved(source, own + index % job->block, salt);
    return moved(ROOT, index, salt);
}

static void call(const struct job *job, float *input, float *output) {
    int total = (int)job->total, block = (int)job->block;
    switch (job->kind) {
    case ALLREDUCE: MPI_Allreduce(input, output, total, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case REDUCE: MPI_Reduce(input, output, total, MPI_FLOAT, MPI_SUM, ROOT, MPI_COMM_WORLD); break;
    case BROADCAST: MPI_Bcast(output, total, MPI_FLOAT, ROOT, MPI_COMM_WORLD); break;
    case ALLGATHER: MPI_Allgather(input, block, MPI_FLOAT, output, block, MPI_FLOAT, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(input, output, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALLTOALL: MPI_Alltoall(input, block, MPI_FLOAT, output, block, MPI_FLOAT, MPI_COMM_WORLD); break;
    default: MPI_Barrier(MPI_COMM_WORLD);
    }
}

struct buffers {
    float *input, *output, *poison, *inputs[SALTS], *answers[SALTS];
};

static void prepare(const struct job *job, struct buffers *at, int salt) {
    memcpy(at->output, at->poison, job->answer * sizeof(float));
    memcpy(job->kind == BROADCAST ? at->output : at->input, at->inputs[salt], job->input * sizeof(float));
}

// One iteration; the time of the call on this rank.
static double iterate(const struct job *job, struct buffers *at, int salt, int checked) {
    if (checked || job->kind == BROADCAST) prepare(job, at, salt);
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    call(job, at->input, at->output);
    double taken = MPI_Wtime() - began;
    if (checked) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (memcmp(at->output, at->answers[salt], job->answer * sizeof(float))) fail("a wrong result");
    }
    return taken;
}

static double slowest(double own) {
    double most;
    MPI_Allreduce(&own, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double percentile(const double *sorted, int count, int percent) {
    int at = (count * percent + 99) / 100;
    return sorted[at > 0 ? at - 1 : 0];
}

static void measure(enum kind kind, double budget, size_t bytes) {
    struct job job = plan(kind, bytes);
    size_t input = job.input * sizeof(float), answer = job.answer * sizeof(float);
    int always = bytes <= ALWAYS_CHECKED, salts = always ? SALTS : 1;
    struct buffers at = {.input = allocate(input), .output = allocate(answer), .poison = allocate(answer)};
    memset(at.poison, 0xff, answer);
    for (int salt = 0; salt < salts; salt++) {
        at.inputs[salt] = allocate(input), at.answers[salt] = allocate(answer);
        for (size_t i = 0; i < job.input; i++) at.inputs[salt][i] = input_of(&job, i, salt);
        for (size_t i = 0; i < job.answer; i++) at.answers[salt][i] = answer_of(&job, i, salt);
    }
    prepare(&job, &at, 0);
    int timed = always ? 2000 : bytes <= 4 << 20 ? 200 : 20, before = timed / 10 > 3 ? timed / 10 : 3;
    double spent = 0, last = 0;
    for (int k = 0; k < before; k++) {
        last = iterate(&job, &at, k % salts, k == 0);
        spent += last;
        if (k + 1 == FEWEST && slowest(spent) > budget / 4) break;
    }
    double affordable = budget / (slowest(last) + 1e-9);
    if (affordable < timed) timed = affordable < FEWEST ? FEWEST : (int)affordable;
    double *own = allocate((size_t)timed * sizeof(double)), *most = allocate((size_t)timed * sizeof(double));
    for (int k = 0; k < timed; k++) own[k] = iterate(&job, &at, k % salts, always || k == 0 || k + 1 == timed);
    MPI_Reduce(own, most, timed, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (job.rank == 0) {
        qsort(most, (size_t)timed, sizeof(double), by_value);
        printf("%zu %.4f %.4f\n", bytes, percentile(most, timed, 50) * 1e6, percentile(most, timed, 99) * 1e6);
        fflush(stdout);
    }
    for (int salt = 0; salt < salts; salt++) free(at.inputs[salt]), free(at.answers[salt]);
    free(at.input), free(at.output), free(at.poison), free(own), free(most);
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    if (count < 4) fail("usage: mpi_collectives COLLECTIVE MILLISECONDS BYTES...");
    int kind = 0;
    while (kind < KINDS && strcmp(names[kind], arguments[1])) kind++;
    if (kind == KINDS) fail("the collective is not known");
    double budget = strtod(arguments[2], NULL) / 1e3;
    for (int at = 3; at < count; at++) measure((enum kind)kind, budget, strtoull(arguments[at], NULL, 10));
    MPI_Finalize();
    return 0;
}
