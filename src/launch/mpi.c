/* mpi.c - see mpi.h. Reads which libraries an ELF file of this machine names. Each
 * piece is read by itself and whole, so a broken file can only tell nothing. */
#include "launch/mpi.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "launch/refusal.h"

#define PARTS_MOST   64u /* of a program, and entries below; others have fewer */
#define ENTRIES_MOST 4096u

struct elf {
    int fd;
    Elf64_Ehdr head;
    uint64_t dynamic, entries; /* where the dynamic entries are, and how many */
    uint64_t names;            /* where their texts are */
};

static bool read_at(int fd, uint64_t at, void *to, size_t n)
{
    return at < INT64_MAX && pread(fd, to, n, (off_t)at) == (ssize_t)n;
}

static bool read_part(const struct elf *e, unsigned i, Elf64_Phdr *part)
{
    return i < MIN_OF(e->head.e_phnum, PARTS_MOST) &&
           read_at(e->fd, e->head.e_phoff + i * sizeof *part, part, sizeof *part);
}

static bool read_entry(const struct elf *e, uint64_t i, Elf64_Dyn *entry)
{
    return i < MIN_OF(e->entries, ENTRIES_MOST) &&
           read_at(e->fd, e->dynamic + i * sizeof *entry, entry, sizeof *entry) &&
           entry->d_tag != DT_NULL;
}

/* Where in the file that lies which is loaded to this address; 0: nowhere. */
static uint64_t offset_of(const struct elf *e, uint64_t address)
{
    Elf64_Phdr part;

    for (unsigned i = 0; read_part(e, i, &part); i++)
        if (part.p_type == PT_LOAD && address >= part.p_vaddr &&
            address - part.p_vaddr < part.p_filesz)
            return part.p_offset + (address - part.p_vaddr);
    return 0;
}

static bool open_elf(struct elf *e)
{
    Elf64_Phdr part;
    Elf64_Dyn entry;

    if (!read_at(e->fd, 0, &e->head, sizeof e->head) ||
        memcmp(e->head.e_ident, ELFMAG, SELFMAG) != 0 ||
        e->head.e_ident[EI_CLASS] != ELFCLASS64 || e->head.e_machine == EM_NONE)
        return false;
    for (unsigned i = 0; read_part(e, i, &part); i++)
        if (part.p_type == PT_DYNAMIC) {
            e->dynamic = part.p_offset;
            e->entries = part.p_filesz / sizeof entry;
        }
    for (uint64_t i = 0; read_entry(e, i, &entry); i++)
        if (entry.d_tag == DT_STRTAB)
            e->names = offset_of(e, entry.d_un.d_ptr);
    return e->names != 0;
}

/* Open MPI's, MPICH's and what is made from it (Intel, Cray, MVAPICH). */
static bool is_mpi(const char *name)
{
    static const char *const known[] = { "libmpi.so",  "libmpi_",    "libmpich",
                                         "libmpicxx.", "libmpifort", "libmvapich" };

    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strncmp(name, known[i], strlen(known[i])) == 0)
            return true;
    return false;
}

static bool find_mpi(const struct elf *e, char *name, size_t size)
{
    char text[64];
    Elf64_Dyn entry;

    for (uint64_t i = 0; read_entry(e, i, &entry); i++) {
        if (entry.d_tag != DT_NEEDED || e->names > INT64_MAX - entry.d_un.d_val)
            continue;
        const ssize_t n =
            pread(e->fd, text, sizeof text - 1, (off_t)(e->names + entry.d_un.d_val));
        text[MAX_OF(n, 0)] = '\0';
        if (!is_mpi(text))
            continue;
        snprintf(name, size, "%s", text);
        return true;
    }
    return false;
}

bool mpi_library(const char *program, const char *search, char *name, size_t size)
{
    char path[4096];
    struct elf e = { .fd = -1 };

    if (refusal_find(program, search, path, sizeof path))
        e.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool found = e.fd >= 0 && open_elf(&e) && find_mpi(&e, name, size);
    if (e.fd >= 0)
        close(e.fd);
    return found;
}
