/* slowfs.c - a command that sees one directory through a slow file system.
 *
 *     slowfs DIRECTORY DELAY_US COMMAND [ARGUMENT...]
 *
 * The directory is mounted over itself, read-only and in a mount namespace of its own,
 * by a FUSE server that answers each request after the delay: as a network file system
 * would, whose server is that far away. What the kernel has looked up it believes for
 * CACHE_S seconds, also that a name is not there, and what it has read it keeps; NFS
 * does about the same. Needs root. Ends with the command's exit code, after a line that
 * says how many requests there were.
 *
 * The kernel's protocol is spoken as <linux/fuse.h> has it, so that nothing need be
 * installed. Nodes are never forgotten: a tree of packages has some ten thousand. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define THREADS  32
#define CACHE_S  3
#define READ_MAX (1u << 20)
#define BUCKETS  65536

struct node {
    uint64_t id;
    char *path; /* below the directory; "." itself */
    struct node *next;
};

static int device, root_fd;
static long delay_ns;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct node **nodes, *buckets[BUCKETS];
static uint64_t node_count;
static _Atomic unsigned long long requests; /* that were answered late */
static pid_t child;

static void die(const char *what)
{
    fprintf(stderr, "slowfs: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* --- nodes ------------------------------------------------------------------------ */

static const char *path_of(uint64_t id)
{
    pthread_mutex_lock(&lock);
    const char *path = id > 0 && id <= node_count ? nodes[id - 1]->path : "";
    pthread_mutex_unlock(&lock);
    return path;
}

static uint64_t node_of(const char *path)
{
    uint32_t hash = 2166136261u;

    for (const char *p = path; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    pthread_mutex_lock(&lock);
    struct node *n = buckets[hash % BUCKETS];
    while (n && strcmp(n->path, path) != 0)
        n = n->next;
    if (!n) {
        n = malloc(sizeof *n);
        nodes = realloc(nodes, (node_count + 1) * sizeof(struct node *));
        if (!n || !nodes || !(n->path = strdup(path)))
            abort();
        nodes[node_count] = n;
        n->id = ++node_count;
        n->next = buckets[hash % BUCKETS];
        buckets[hash % BUCKETS] = n;
    }
    pthread_mutex_unlock(&lock);
    return n->id;
}

/* --- answers ---------------------------------------------------------------------- */

static void answer(uint64_t unique, int error, const void *data, size_t n)
{
    struct fuse_out_header head = {
        .len = (uint32_t)(sizeof head + (error ? 0 : n)),
        .error = -error,
        .unique = unique,
    };
    struct iovec parts[2] = {
        { &head, sizeof head },
        { (void *)(uintptr_t)data, error ? 0 : n },
    };

    (void)!writev(device, parts, 2);
}

static struct fuse_attr attr_of(const struct stat *st)
{
    return (struct fuse_attr){
        .ino = st->st_ino,
        .size = (uint64_t)st->st_size,
        .blocks = (uint64_t)st->st_blocks,
        .atime = (uint64_t)st->st_atim.tv_sec,
        .mtime = (uint64_t)st->st_mtim.tv_sec,
        .ctime = (uint64_t)st->st_ctim.tv_sec,
        .atimensec = (uint32_t)st->st_atim.tv_nsec,
        .mtimensec = (uint32_t)st->st_mtim.tv_nsec,
        .ctimensec = (uint32_t)st->st_ctim.tv_nsec,
        .mode = st->st_mode,
        .nlink = (uint32_t)st->st_nlink,
        .uid = st->st_uid,
        .gid = st->st_gid,
        .rdev = (uint32_t)st->st_rdev,
        .blksize = (uint32_t)st->st_blksize,
    };
}

static int look(const char *path, struct stat *st)
{
    return fstatat(root_fd, path, st, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
}

static void do_init(const struct fuse_in_header *in, const struct fuse_init_in *body)
{
    const struct fuse_init_out out = {
        .major = FUSE_KERNEL_VERSION,
        .minor = FUSE_KERNEL_MINOR_VERSION,
        .max_readahead = body->max_readahead,
        .flags = body->flags & (FUSE_ASYNC_READ | FUSE_PARALLEL_DIROPS |
                                FUSE_MAX_PAGES | FUSE_CACHE_SYMLINKS),
        .max_background = THREADS,
        .congestion_threshold = THREADS,
        .max_write = READ_MAX,
        .time_gran = 1,
        .max_pages = READ_MAX / 4096,
    };

    answer(in->unique, 0, &out, sizeof out);
}

static void do_lookup(const struct fuse_in_header *in, const char *name)
{
    const char *parent = path_of(in->nodeid);
    struct fuse_entry_out out = { .entry_valid = CACHE_S, .attr_valid = CACHE_S };
    struct stat st;
    char path[4096];

    if (strcmp(parent, ".") == 0)
        snprintf(path, sizeof path, "%s", name);
    else
        snprintf(path, sizeof path, "%s/%s", parent, name);
    const int error = look(path, &st);
    if (error == 0) {
        out.nodeid = node_of(path);
        out.attr = attr_of(&st);
    }
    answer(in->unique, error == ENOENT ? 0 : error, &out, sizeof out);
}

static void do_getattr(const struct fuse_in_header *in)
{
    struct fuse_attr_out out = { .attr_valid = CACHE_S };
    struct stat st;
    const int error = look(path_of(in->nodeid), &st);

    if (error == 0)
        out.attr = attr_of(&st);
    answer(in->unique, error, &out, sizeof out);
}

static void do_readlink(const struct fuse_in_header *in)
{
    char target[4096];
    const ssize_t n = readlinkat(root_fd, path_of(in->nodeid), target, sizeof target);

    answer(in->unique, n < 0 ? errno : 0, target, n < 0 ? 0 : (size_t)n);
}

static void do_open(const struct fuse_in_header *in, const struct fuse_open_in *body)
{
    const int fd =
        openat(root_fd, path_of(in->nodeid), (int)body->flags | O_CLOEXEC | O_NOFOLLOW);
    const struct fuse_open_out out = { .fh = (uint64_t)fd,
                                       .open_flags = FOPEN_KEEP_CACHE };

    answer(in->unique, fd < 0 ? errno : 0, &out, sizeof out);
}

static void do_read(const struct fuse_in_header *in, const struct fuse_read_in *body,
                    char *room)
{
    const size_t want = body->size < READ_MAX ? body->size : READ_MAX;
    const ssize_t n = pread((int)body->fh, room, want, (off_t)body->offset);

    answer(in->unique, n < 0 ? errno : 0, room, n < 0 ? 0 : (size_t)n);
}

static void do_opendir(const struct fuse_in_header *in)
{
    const int fd =
        openat(root_fd, path_of(in->nodeid), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    const struct fuse_open_out out = { .fh = (uint64_t)(uintptr_t)dir,
                                       .open_flags = FOPEN_KEEP_CACHE };

    answer(in->unique, dir ? 0 : errno, &out, sizeof out);
}

static void do_readdir(const struct fuse_in_header *in, const struct fuse_read_in *body,
                       char *room)
{
    DIR *dir = (DIR *)(uintptr_t)body->fh;
    const size_t limit = body->size < READ_MAX ? body->size : READ_MAX;
    size_t used = 0;

    seekdir(dir, (long)body->offset);
    for (struct dirent *e; (e = readdir(dir));) {
        const size_t name = strlen(e->d_name);
        const size_t size = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + name);
        struct fuse_dirent *d = (struct fuse_dirent *)(void *)(room + used);

        if (used + size > limit)
            break;
        memset(d, 0, size);
        d->ino = e->d_ino;
        d->off = (uint64_t)telldir(dir);
        d->namelen = (uint32_t)name;
        d->type = e->d_type;
        memcpy(d->name, e->d_name, name);
        used += size;
    }
    answer(in->unique, 0, room, used);
}

static void do_statfs(const struct fuse_in_header *in)
{
    struct fuse_statfs_out out = { 0 };
    struct statvfs st;
    const int error = fstatvfs(root_fd, &st) == 0 ? 0 : errno;

    out.st.bsize = 4096;
    out.st.namelen = 255;
    if (error == 0)
        out.st.blocks = st.f_blocks;
    answer(in->unique, error, &out, sizeof out);
}

/* --- requests --------------------------------------------------------------------- */

static void perform(const struct fuse_in_header *in, const void *body, char *room)
{
    switch (in->opcode) {
    case FUSE_INIT:
        do_init(in, body);
        return;
    case FUSE_FORGET: /* These have no answer. */
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        return;
    case FUSE_IOCTL: /* "Is this a terminal?" No network file system asks its server. */
        answer(in->unique, ENOTTY, NULL, 0);
        return;
    case FUSE_RELEASE:
        close((int)((const struct fuse_release_in *)body)->fh);
        answer(in->unique, 0, NULL, 0);
        return;
    case FUSE_RELEASEDIR:
        closedir((DIR *)(uintptr_t)((const struct fuse_release_in *)body)->fh);
        answer(in->unique, 0, NULL, 0);
        return;
    default:
        break;
    }
    requests++;
    nanosleep(&(struct timespec){ delay_ns / 1000000000, delay_ns % 1000000000 }, NULL);
    switch (in->opcode) {
    case FUSE_LOOKUP:
        do_lookup(in, body);
        break;
    case FUSE_GETATTR:
        do_getattr(in);
        break;
    case FUSE_READLINK:
        do_readlink(in);
        break;
    case FUSE_OPEN:
        do_open(in, body);
        break;
    case FUSE_READ:
        do_read(in, body, room);
        break;
    case FUSE_OPENDIR:
        do_opendir(in);
        break;
    case FUSE_READDIR:
        do_readdir(in, body, room);
        break;
    case FUSE_STATFS:
        do_statfs(in);
        break;
    default:
        answer(in->unique, ENOSYS, NULL, 0);
    }
}

static void *serve(void *unused)
{
    const size_t size = READ_MAX + 65536;
    char *request = malloc(size), *room = malloc(size);

    (void)unused;
    if (!request || !room)
        die("memory");
    for (;;) {
        const ssize_t n = read(device, request, size);

        if (n < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN))
            continue;
        if (n < (ssize_t)sizeof(struct fuse_in_header))
            return NULL; /* unmounted */
        const struct fuse_in_header *in =
            (const struct fuse_in_header *)(void *)request;
        perform(in, in + 1, room);
    }
}

static void pass_on(int number)
{
    if (child > 0)
        kill(child, number);
}

static void mount_over(const char *directory)
{
    char options[128];

    root_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (root_fd < 0 || device < 0)
        die(root_fd < 0 ? directory : "/dev/fuse");
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        die("a mount namespace");
    (void)node_of("."); /* FUSE_ROOT_ID is 1 */
    snprintf(
        options, sizeof options,
        "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions",
        device);
    if (mount("slowfs", directory, "fuse.slowfs", MS_RDONLY | MS_NODEV | MS_NOSUID,
              options) != 0)
        die("mount");
}

int main(int argc, char **argv)
{
    pthread_t thread;
    int status = 0;

    if (argc < 4) {
        fprintf(stderr, "usage: slowfs DIRECTORY DELAY_US COMMAND [ARGUMENT...]\n");
        return 2;
    }
    delay_ns = strtol(argv[2], NULL, 10) * 1000;
    mount_over(argv[1]);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&thread, NULL, serve, NULL) != 0)
            die("threads");
    signal(SIGTERM, pass_on);
    signal(SIGINT, pass_on);
    child = fork();
    if (child == 0) {
        signal(SIGTERM, SIG_DFL);
        signal(SIGINT, SIG_DFL);
        execvp(argv[3], argv + 3);
        fprintf(stderr, "slowfs: %s: %s\n", argv[3], strerror(errno));
        _exit(127);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    fprintf(stderr, "slowfs: %llu requests\n", requests);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
