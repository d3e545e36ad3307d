// A library to preload: makes one chosen system call on files of a store fail, or kills the process there.
// Calls count if their path, or the path that their descriptor was opened with, contains the marked text.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { OPEN, WRITE, FSYNC, RENAME, LINK, UNLINK, READDIR, TRUNCATE, MKDIR, UTIME, NUM_CALLS };
static const char* names[NUM_CALLS] = {"open", "write", "fsync", "rename", "link",
                                       "unlink", "readdir", "truncate", "mkdir", "utime"};
// Actions besides positive error numbers.
enum { SHORT_WRITE = -1, KILL_BEFORE = -2, KILL_AFTER = -3 };

static char mark[256];
static long counts[NUM_CALLS];
static int armed_call = -1, armed_action, armed_repeats;
static long armed_at;
static char is_marked_fd[4096];
static DIR* marked_folders[64];
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

// Start to count calls on paths that contain this text.
void fault_mark(const char* text) {
  strncpy(mark, text, sizeof mark - 1);
  memset(counts, 0, sizeof counts);
}

// Let call number `at` (from 0) of this name fail; with `repeats`, all later ones too.
int fault_arm(const char* name, long at, int action, int repeats) {
  for (int call = 0; call < NUM_CALLS; ++call)
    if (!strcmp(names[call], name)) {
      armed_at = at;
      armed_action = action;
      armed_repeats = repeats;
      armed_call = call;
      return 0;
    }
  return -1;
}

long fault_count(const char* name) {
  for (int call = 0; call < NUM_CALLS; ++call)
    if (!strcmp(names[call], name)) return counts[call];
  return -1;
}

static int is_marked(const char* path) { return mark[0] && path && strstr(path, mark); }

// Count a call; return its action, or 0 if it is not the chosen one.
static int take_action(int call) {
  pthread_mutex_lock(&guard);
  const long number = counts[call]++;
  pthread_mutex_unlock(&guard);
  if (call != armed_call || number < armed_at || (number > armed_at && !armed_repeats)) return 0;
  if (armed_action == KILL_BEFORE) kill(getpid(), SIGKILL);
  return armed_action;
}

static void* real(const char* name) { return dlsym(RTLD_NEXT, name); }

static void note_fd(int fd, int marked) {
  if (fd >= 0 && fd < (int)sizeof is_marked_fd) is_marked_fd[fd] = marked;
}
static int is_marked_number(int fd) { return fd >= 0 && fd < (int)sizeof is_marked_fd && is_marked_fd[fd]; }

#define FAULTY(call, condition, failure, perform)   \
  const int action = (condition) ? take_action(call) : 0; \
  if (action > 0) {                                 \
    errno = action;                                 \
    return failure;                                 \
  }                                                 \
  __typeof__(perform) result = perform;             \
  if (action == KILL_AFTER) kill(getpid(), SIGKILL);

#define OPEN_FUNCTION(name)                                                              \
  int name(const char* path, int flags, ...) {                                           \
    va_list more;                                                                        \
    va_start(more, flags);                                                               \
    const mode_t mode = va_arg(more, mode_t);                                            \
    va_end(more);                                                                        \
    FAULTY(OPEN, is_marked(path), -1, ((int (*)(const char*, int, mode_t))real(#name))(path, flags, mode)) \
    note_fd(result, is_marked(path) != 0);                                               \
    return result;                                                                       \
  }
OPEN_FUNCTION(open)
OPEN_FUNCTION(open64)

#define OPENAT_FUNCTION(name)                                                                  \
  int name(int folder, const char* path, int flags, ...) {                                     \
    va_list more;                                                                              \
    va_start(more, flags);                                                                     \
    const mode_t mode = va_arg(more, mode_t);                                                  \
    va_end(more);                                                                              \
    const int marked = is_marked(path) || is_marked_number(folder);                            \
    FAULTY(OPEN, marked, -1, ((int (*)(int, const char*, int, mode_t))real(#name))(folder, path, flags, mode)) \
    note_fd(result, marked);                                                                   \
    return result;                                                                             \
  }
OPENAT_FUNCTION(openat)
OPENAT_FUNCTION(openat64)

int close(int fd) {
  note_fd(fd, 0);
  return ((int (*)(int))real("close"))(fd);
}

ssize_t write(int fd, const void* data, size_t size) {
  ssize_t (*const write_all)(int, const void*, size_t) = real("write");
  if (is_marked_number(fd) && armed_action == SHORT_WRITE && armed_call == WRITE)
    return write_all(fd, data, take_action(WRITE) && size > 1 ? size / 2 : size);
  FAULTY(WRITE, is_marked_number(fd), -1, write_all(fd, data, size))
  return result;
}

int fsync(int fd) {
  FAULTY(FSYNC, is_marked_number(fd), -1, ((int (*)(int))real("fsync"))(fd))
  return result;
}

#define TRUNCATE_FUNCTION(name)                                                               \
  int name(int fd, off_t size) {                                                              \
    FAULTY(TRUNCATE, is_marked_number(fd), -1, ((int (*)(int, off_t))real(#name))(fd, size))  \
    return result;                                                                            \
  }
TRUNCATE_FUNCTION(ftruncate)
TRUNCATE_FUNCTION(ftruncate64)

int rename(const char* from, const char* to) {
  FAULTY(RENAME, is_marked(to), -1, ((int (*)(const char*, const char*))real("rename"))(from, to))
  return result;
}
int renameat(int folder, const char* from, int other, const char* to) {
  FAULTY(RENAME, is_marked(to), -1,
         ((int (*)(int, const char*, int, const char*))real("renameat"))(folder, from, other, to))
  return result;
}
int link(const char* from, const char* to) {
  FAULTY(LINK, is_marked(to), -1, ((int (*)(const char*, const char*))real("link"))(from, to))
  return result;
}
int linkat(int folder, const char* from, int other, const char* to, int flags) {
  FAULTY(LINK, is_marked(to), -1,
         ((int (*)(int, const char*, int, const char*, int))real("linkat"))(folder, from, other, to, flags))
  return result;
}
int unlink(const char* path) {
  FAULTY(UNLINK, is_marked(path), -1, ((int (*)(const char*))real("unlink"))(path))
  return result;
}
int unlinkat(int folder, const char* path, int flags) {
  FAULTY(UNLINK, is_marked(path) || is_marked_number(folder), -1,
         ((int (*)(int, const char*, int))real("unlinkat"))(folder, path, flags))
  return result;
}
int rmdir(const char* path) {
  FAULTY(UNLINK, is_marked(path), -1, ((int (*)(const char*))real("rmdir"))(path))
  return result;
}
int mkdir(const char* path, mode_t mode) {
  FAULTY(MKDIR, is_marked(path), -1, ((int (*)(const char*, mode_t))real("mkdir"))(path, mode))
  return result;
}
int utimensat(int folder, const char* path, const struct timespec times[2], int flags) {
  FAULTY(UTIME, is_marked(path), -1,
         ((int (*)(int, const char*, const struct timespec*, int))real("utimensat"))(folder, path, times, flags))
  return result;
}

static DIR* note_folder(DIR* folder) {
  for (size_t i = 0; folder && i < sizeof marked_folders / sizeof *marked_folders; ++i)
    if (!marked_folders[i]) {
      marked_folders[i] = folder;
      break;
    }
  return folder;
}
static int is_marked_folder(DIR* folder) {
  for (size_t i = 0; i < sizeof marked_folders / sizeof *marked_folders; ++i)
    if (marked_folders[i] == folder) return 1;
  return 0;
}
DIR* opendir(const char* path) {
  FAULTY(READDIR, is_marked(path), NULL, ((DIR * (*)(const char*)) real("opendir"))(path))
  return is_marked(path) ? note_folder(result) : result;
}
DIR* fdopendir(int fd) {
  DIR* result = ((DIR * (*)(int)) real("fdopendir"))(fd);
  return is_marked_number(fd) ? note_folder(result) : result;
}
int closedir(DIR* folder) {
  for (size_t i = 0; i < sizeof marked_folders / sizeof *marked_folders; ++i)
    if (marked_folders[i] == folder) marked_folders[i] = NULL;
  return ((int (*)(DIR*))real("closedir"))(folder);
}
#define READDIR_FUNCTION(name, type)                                                                \
  type* name(DIR* folder) {                                                                         \
    FAULTY(READDIR, is_marked_folder(folder), NULL, ((type * (*)(DIR*)) real(#name))(folder))       \
    return result;                                                                                  \
  }
READDIR_FUNCTION(readdir, struct dirent)
READDIR_FUNCTION(readdir64, struct dirent64)
