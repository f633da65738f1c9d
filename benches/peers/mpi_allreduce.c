// Times MPI_Allreduce of floats with sum: prints, for each size given, the bytes and the median time of the slower rank in
// microseconds. Iterations are those of `phalanx bench`.
//
//   mpicc -O2 mpi_allreduce.c -o mpi_allreduce && mpirun -np 2 ./mpi_allreduce 8 4096

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int at = 1; at < count; at++) {
        size_t bytes = strtoull(arguments[at], NULL, 10), elements = bytes / sizeof(float);
        float *input = malloc(bytes), *output = malloc(bytes);
        if (!input || !output) MPI_Abort(MPI_COMM_WORLD, 1);
        for (size_t i = 0; i < elements; i++) input[i] = (float)(rank + 1), output[i] = 0;
        int timed = bytes <= 65536 ? 2000 : bytes <= 4 << 20 ? 200 : 20;
        double *mine = malloc(timed * sizeof(double)), *slowest = malloc(timed * sizeof(double));
        if (!mine || !slowest) MPI_Abort(MPI_COMM_WORLD, 1);
        for (int k = -timed / 10; k < timed; k++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double began = MPI_Wtime();
            MPI_Allreduce(input, output, (int)elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            if (k >= 0) mine[k] = MPI_Wtime() - began;
        }
        MPI_Reduce(mine, slowest, timed, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            qsort(slowest, timed, sizeof(double), by_value);
            printf("%zu %.3f\n", bytes, slowest[timed / 2] * 1e6);
            fflush(stdout);
        }
        free(input), free(output), free(mine), free(slowest);
    }
    MPI_Finalize();
    return 0;
}
