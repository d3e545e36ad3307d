/* Latency of MPI messages between two ranks, or of an allreduce of all, as the OSU benchmarks measure them.
 *
 * Arguments: point_to_point or allreduce, bytes, seconds of timing. Prints the median seconds of one operation; for
 * point_to_point half of a round trip. Each sample holds enough operations to be timed.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SAMPLES 4000
#define SAMPLE_S 0.0002

static void pass_messages(int is_ping_pong, float *sent, float *received, int count, int rank, int last) {
    if (!is_ping_pong) {
        MPI_Allreduce(MPI_IN_PLACE, sent, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (rank == 0) {
        MPI_Send(sent, count, MPI_FLOAT, last, 0, MPI_COMM_WORLD);
        MPI_Recv(received, count, MPI_FLOAT, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == last) {
        MPI_Recv(received, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(received, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
    }
}

static int compare(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

int main(int num_arguments, char **arguments) {
    int rank, num_ranks, provided;
    /* mpi4py asks for the same level. */
    MPI_Init_thread(&num_arguments, &arguments, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    if (num_arguments != 4) {
        if (rank == 0) fprintf(stderr, "usage: osu_style point_to_point|allreduce BYTES SECONDS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int is_ping_pong = strcmp(arguments[1], "point_to_point") == 0;
    int count = atoi(arguments[2]) / (int)sizeof(float);
    double limit_s = atof(arguments[3]);
    float *sent = NULL, *received = NULL;
    if (posix_memalign((void **)&sent, 4096, count * sizeof(float)) ||
        posix_memalign((void **)&received, 4096, count * sizeof(float)))
        MPI_Abort(MPI_COMM_WORLD, 3);
    memset(sent, 0, count * sizeof(float));
    memset(received, 0, count * sizeof(float));

    /* Warm up, and choose how many operations make a sample; rank 0 decides for all. */
    double start = MPI_Wtime();
    for (int i = 0; i < 20; i++) pass_messages(is_ping_pong, sent, received, count, rank, num_ranks - 1);
    double each_s = (MPI_Wtime() - start) / 20;
    int plan[2];
    plan[0] = each_s < SAMPLE_S ? (int)(SAMPLE_S / each_s) + 1 : 1;
    plan[1] = (int)(limit_s / (each_s * plan[0])) + 1;
    if (plan[1] < 10) plan[1] = 10;
    if (plan[1] > MAX_SAMPLES) plan[1] = MAX_SAMPLES;
    MPI_Bcast(plan, 2, MPI_INT, 0, MPI_COMM_WORLD);

    static double samples_s[MAX_SAMPLES];
    for (int sample = 0; sample < plan[1]; sample++) {
        start = MPI_Wtime();
        for (int i = 0; i < plan[0]; i++) pass_messages(is_ping_pong, sent, received, count, rank, num_ranks - 1);
        samples_s[sample] = (MPI_Wtime() - start) / plan[0];
    }
    qsort(samples_s, plan[1], sizeof(double), compare);
    if (rank == 0) printf("%.9e\n", samples_s[plan[1] / 2] / (is_ping_pong ? 2 : 1));
    MPI_Finalize();
    return 0;
}
