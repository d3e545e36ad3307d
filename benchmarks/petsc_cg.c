/* PETSc's conjugate gradients on the 27-point stencil, as one side of cg_cpu.py. For each number on standard input it
 * runs as many solves of a fixed number of iterations and prints their times as JSON.
 *
 *   mpirun -n THREADS petsc_cg EDGE ITERATIONS natural|default RHS_FILE RESIDUAL_FILE
 */
#include <petscksp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void insert_row(Mat a, PetscInt row, PetscInt edge) {
  PetscInt columns[27], n = 0, x = row % edge, y = row / edge % edge, z = row / (edge * edge);
  PetscScalar values[27];
  for (PetscInt dz = -1; dz <= 1; dz++)
    for (PetscInt dy = -1; dy <= 1; dy++)
      for (PetscInt dx = -1; dx <= 1; dx++) {
        PetscInt nx = x + dx, ny = y + dy, nz = z + dz;
        if (nx < 0 || ny < 0 || nz < 0 || nx >= edge || ny >= edge || nz >= edge) continue;
        columns[n] = (nz * edge + ny) * edge + nx;
        values[n] = columns[n] == row ? 26.0 : -1.0;
        n++;
      }
  MatSetValues(a, 1, &row, n, columns, values, INSERT_VALUES);
}

/* Ranks other than the first wait asleep: spinning they would take time from whoever's turn it is. */
static int next_turn(int rank) {
  int steps = 0, there = 0;
  char line[64];
  MPI_Request request;
  if (rank == 0 && fgets(line, sizeof line, stdin)) steps = atoi(line);
  MPI_Ibcast(&steps, 1, MPI_INT, 0, PETSC_COMM_WORLD, &request);
  while (MPI_Test(&request, &there, MPI_STATUS_IGNORE), !there) usleep(500);
  return steps;
}

int main(int argc, char **argv) {
  Mat a;
  Vec x, b;
  KSP ksp;
  PC pc;
  PetscInt first, last;
  PetscReal norm, start;
  int rank, steps;
  PetscInitialize(&argc, &argv, NULL, NULL);
  MPI_Comm_rank(PETSC_COMM_WORLD, &rank);
  PetscInt edge = atoi(argv[1]), iterations = atoi(argv[2]), rows = edge * edge * edge;
  MatCreateAIJ(PETSC_COMM_WORLD, PETSC_DECIDE, PETSC_DECIDE, rows, rows, 27, NULL, 27, NULL, &a);
  MatGetOwnershipRange(a, &first, &last);
  for (PetscInt row = first; row < last; row++) insert_row(a, row, edge);
  MatAssemblyBegin(a, MAT_FINAL_ASSEMBLY);
  MatAssemblyEnd(a, MAT_FINAL_ASSEMBLY);
  MatCreateVecs(a, &x, &b);
  PetscScalar *values;
  VecGetArray(b, &values);
  FILE *file = fopen(argv[4], "rb");
  if (!file || fseek(file, 8L * first, SEEK_SET) || fread(values, 8, last - first, file) != (size_t)(last - first))
    MPI_Abort(PETSC_COMM_WORLD, 2);
  fclose(file);
  VecRestoreArray(b, &values);
  VecNorm(b, NORM_2, &start);
  KSPCreate(PETSC_COMM_WORLD, &ksp);
  KSPSetOperators(ksp, a, a);
  KSPSetType(ksp, KSPCG);
  KSPGetPC(ksp, &pc);
  PCSetType(pc, PCNONE);
  if (!strcmp(argv[3], "natural")) KSPSetNormType(ksp, KSP_NORM_NATURAL);
  KSPSetTolerances(ksp, 1e-300, 1e-300, PETSC_DEFAULT, iterations);
  KSPSetUp(ksp);
  KSPSolve(ksp, b, x);
  KSPGetResidualNorm(ksp, &norm);
  if (rank == 0) {
    file = fopen(argv[5], "w");
    fprintf(file, "%.17g\n", norm / start);
    fclose(file);
    printf("ready\n");
    fflush(stdout);
  }
  while ((steps = next_turn(rank)) > 0) {
    for (int step = 0; step < steps; step++) {
      MPI_Barrier(PETSC_COMM_WORLD);
      double began = MPI_Wtime();
      KSPSolve(ksp, b, x);
      MPI_Barrier(PETSC_COMM_WORLD);
      if (rank == 0) printf("%s%.9f", step ? ", " : "[", MPI_Wtime() - began);
    }
    if (rank == 0) {
      printf("]\n");
      fflush(stdout);
    }
  }
  PetscFinalize();
  return 0;
}
