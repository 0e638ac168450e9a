/* sample.h - what was seen of the workers at one moment: for each rank its processes,
 * for each process its state and its threads, for each thread its frames. Pure.
 *
 * A node's part travels as JSON, from the reader to its agent and on to whoever asked:
 *
 *     {"node": "node2", "held": true, "notes": ["no py-spy ..."], "ranks": [{"rank": 5,
 *      "local_rank": 1, "processes": [{"pid": 4711, "parent": 4700, "state": "S",
 *      "command": "python", "wchan": "futex_do_wait", "syscall": "futex",
 *      "switches": 12, "cpu_ms": 980, "threads": [{"id": 4711, "name": "MainThread",
 *      "gil": true, "python": [["load_batch", "data.py", 31]], "native": [["read",
 * "libc.so.6"]]}]}]}]}
 *
 * What is read from such a text is escaped (base/escape.h), so that it can be printed.
 * The first process of a rank is the worker, the others descend from it; the first
 * thread of a process is its main one; frames begin with the innermost. */
#ifndef STACKS_CORE_SAMPLE_H
#define STACKS_CORE_SAMPLE_H

#include "base/arena.h"
#include "base/buf.h"
#include "muster/error.h"

/* What is kept of each, so that an answer stays small; more is cut off. */
#define STACK_FRAMES_MAX    48u
#define STACK_THREADS_MAX   8u
#define STACK_PROCESSES_MAX 33u /* a worker and 32 others: DataLoaders have many */
#define STACK_NOTES_MAX     16u
#define STACK_NODE_BYTES    (1u << 20) /* a node's JSON */
#define STACK_JOB_BYTES     (8u << 20) /* a whole job's */
#define STACK_RANKS_MAX     65536u

struct stack_frame {
    const char *name;
    const char *file; /* of Python: short, as py-spy has it; native: the library */
    int64_t line;     /* 0: unknown */
};

struct stack_thread {
    int64_t id;       /* the kernel's; 0: unknown */
    const char *name; /* "" if it has none */
    bool gil;         /* holds the interpreter's lock */
    struct stack_frame *python, *native;
    size_t python_count, native_count;
};

struct stack_process {
    int64_t pid, parent;
    char state;          /* as /proc has it: R S D T t Z X; 0: unknown */
    const char *command; /* its short name */
    const char *wchan;   /* where in the kernel it waits; "" if nowhere or unknown */
    const char *syscall; /* in which system call; "" if in none or unknown */
    uint64_t switches;   /* how often the main thread has gone to sleep */
    uint64_t cpu_ms;     /* that the main thread has used */
    const char *missing; /* what could not be read, and why; "" if nothing */
    struct stack_thread *threads;
    size_t thread_count;
};

struct stack_rank {
    int64_t rank, local_rank;
    const char *node;
    struct stack_process *processes; /* at least the worker itself */
    size_t process_count;
};

struct stack_sample {
    struct arena arena;       /* all texts and arrays below, but ranks and notes */
    struct stack_rank *ranks; /* owned; ascending once sorted */
    size_t count, size;
    const char *notes[STACK_NOTES_MAX]; /* what is missing in general, no two equal */
    size_t note_count;
    bool held; /* a worker's main thread had to answer by itself, and so has run */
};

void stack_sample_fini(struct stack_sample *s); /* a zeroed one is fine */

/* A new rank at the end with room for its processes, or NULL for no memory. */
struct stack_rank *stack_sample_add(struct stack_sample *s, size_t processes);

/* Keeps a copy of the note, escaped, unless it is there or there are too many. */
int stack_sample_note(struct stack_sample *s, const char *text);

/* By rank. */
void stack_sample_sort(struct stack_sample *s);

/* The node's part as JSON; node NULL: of several, each rank with its own. 0,
 * MUSTER_ENOMEM or MUSTER_EFULL. */
int stack_sample_print(struct buf *out, const struct stack_sample *s, const char *node);

/* The same in at most so many bytes: where it is too long, first threads go that hold
 * nobody up, then helpers of ranks, then all frames but the innermost, then all of
 * them. */
int stack_sample_print_within(struct buf *out, const struct stack_sample *s,
                              const char *node, size_t most);

/* Adds the ranks of a node's JSON, and its notes. MUSTER_EPROTO for anything but such a
 * text; s then has nothing of it. */
int stack_sample_parse(struct stack_sample *s, struct span json,
                       struct muster_error *err);

/* The same of a node that the job knows by this name, which may say more than its own.
 * Empty: by its own. */
int stack_sample_parse_of(struct stack_sample *s, struct span json, struct span node,
                          struct muster_error *err);

/* The main thread, or NULL if no thread was read. */
const struct stack_thread *stack_main_thread(const struct stack_process *p);

#endif
