// Times MPI_Allreduce of floats with sum: prints, for each size given, the bytes and the median time of the slower rank in
// microseconds. Iterations are those of `phalanx bench`, and so is what is done between them: up to 64 KiB another input
// each time, and a look at every element of every result.
//
//   mpicc -O2 mpi_allreduce.c -o mpi_allreduce && mpirun -np 2 ./mpi_allreduce 8 4096

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SALTS = 3, ALWAYS_CHECKED = 65536 };

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static float *allocate(size_t bytes) {
    float *memory = malloc(bytes);
    if (!memory) MPI_Abort(MPI_COMM_WORLD, 1);
    return memory;
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int at = 1; at < count; at++) {
        size_t bytes = strtoull(arguments[at], NULL, 10), elements = bytes / sizeof(float);
        int checked = bytes <= ALWAYS_CHECKED, salts = checked ? SALTS : 1;
        float *input = allocate(bytes), *output = allocate(bytes), *poison = allocate(bytes);
        float *inputs[SALTS], *answers[SALTS];
        memset(poison, 0xff, bytes);
        for (int salt = 0; salt < salts; salt++) {
            inputs[salt] = allocate(bytes), answers[salt] = allocate(bytes);
            for (size_t i = 0; i < elements; i++) {
                float own = (float)((i + (size_t)salt) % 7);
                inputs[salt][i] = own + (float)rank;
                answers[salt][i] = own * (float)ranks + (float)(ranks * (ranks - 1) / 2);
            }
        }
        memcpy(input, inputs[0], bytes);
        memcpy(output, poison, bytes);
        int timed = bytes <= 65536 ? 2000 : bytes <= 4 << 20 ? 200 : 20;
        double *mine = malloc(timed * sizeof(double)), *slowest = malloc(timed * sizeof(double));
        if (!mine || !slowest) MPI_Abort(MPI_COMM_WORLD, 1);
        for (int k = -timed / 10; k < timed; k++) {
            int salt = (k + timed) % salts;
            if (checked) {
                memcpy(output, poison, bytes);
                memcpy(input, inputs[salt], bytes);
            }
            MPI_Barrier(MPI_COMM_WORLD);
            double began = MPI_Wtime();
            MPI_Allreduce(input, output, (int)elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            if (k >= 0) mine[k] = MPI_Wtime() - began;
            if (checked || k == -timed / 10 || k == timed - 1) {
                MPI_Barrier(MPI_COMM_WORLD);
                if (memcmp(output, answers[salt], bytes)) {
                    fprintf(stderr, "rank %d: a wrong result of %zu bytes\n", rank, bytes);
                    MPI_Abort(MPI_COMM_WORLD, 1);
                }
            }
        }
        MPI_Reduce(mine, slowest, timed, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            qsort(slowest, timed, sizeof(double), by_value);
            printf("%zu %.3f\n", bytes, slowest[timed / 2] * 1e6);
            fflush(stdout);
        }
        for (int salt = 0; salt < salts; salt++) free(inputs[salt]), free(answers[salt]);
        free(input), free(output), free(poison), free(mine), free(slowest);
    }
    MPI_Finalize();
    return 0;
}
