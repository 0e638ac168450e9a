/* refusal.c - see refusal.h. */
#include "launch/refusal.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/escape.h"
#include "loop/file.h"

#define HEAD 4096u /* how many bytes of a program are looked at */

bool refusal_find(const char *program, const char *search, char *path, size_t size)
{
    struct stat st;

    if (strchr(program, '/') || !search) {
        snprintf(path, size, "%s", program);
        return stat(path, &st) == 0;
    }
    while (*search) {
        const size_t n = strcspn(search, ":");

        if (n + strlen(program) + 2 <= size) {
            memcpy(path, search, n);
            snprintf(path + n, size - n, "/%s", program);
            if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
                return true;
        }
        search += n + (search[n] == ':');
    }
    return false;
}

static const char *machine_name(unsigned machine)
{
    switch (machine) {
    case EM_X86_64:
        return "x86-64";
    case EM_386:
        return "32-bit x86";
    case EM_AARCH64:
        return "arm64";
    case EM_ARM:
        return "32-bit ARM";
    case EM_PPC64:
        return "POWER";
    case EM_S390:
        return "s390";
    case EM_RISCV:
        return "RISC-V";
    default:
        return "another kind of machine";
    }
}

#if defined __x86_64__
#define OWN_MACHINE EM_X86_64
#elif defined __aarch64__
#define OWN_MACHINE EM_AARCH64
#elif defined __powerpc64__
#define OWN_MACHINE EM_PPC64
#elif defined __s390x__
#define OWN_MACHINE EM_S390
#elif defined __riscv
#define OWN_MACHINE EM_RISCV
#else
#define OWN_MACHINE EM_NONE
#endif

static void put_quoted(struct buf *out, const uint8_t *p, size_t n)
{
    (void)buf_append_str(out, "'");
    (void)escape_append(out, span_of(p, n), 0);
    (void)buf_append_str(out, "'");
}

/* "#! /usr/bin/env bash": ENOENT means that the interpreter is not there. */
static void explain_script(struct buf *out, struct span text, int errnum)
{
    const struct span line = span_take_line(&text);
    const uint8_t *p = line.p;
    const size_t n = line.n;
    size_t i = 2, word;

    while (i < n && (p[i] == ' ' || p[i] == '\t'))
        i++;
    for (word = i; i < n && p[i] != ' ' && p[i] != '\t'; i++)
        ;
    if (errnum != ENOENT && errnum != EACCES)
        return;
    (void)buf_append_str(out, "its first line asks for the interpreter ");
    if (i > word && p[i - 1] == '\r') {
        put_quoted(out, p + word, i - word - 1);
        (void)buf_append_str(out, " and ends with a carriage return, as on Windows: "
                                  "save it with Unix line ends");
        return;
    }
    put_quoted(out, p + word, i - word);
    (void)buf_append_str(out, errnum == ENOENT ? ", which does not exist on this node"
                                               : ", which may not be executed");
}

static void explain_elf(struct buf *out, const uint8_t *p, size_t n, int errnum)
{
    const Elf64_Ehdr *head = (const void *)p;

    if (n >= sizeof *head && errnum == ENOEXEC && head->e_machine != OWN_MACHINE) {
        (void)buf_printf(out, "it is a program for %s, and this node is %s",
                         machine_name(head->e_machine), machine_name(OWN_MACHINE));
        return;
    }
    if (errnum == ENOEXEC)
        (void)buf_append_str(out, "it is a broken program, or of a format that this "
                                  "kernel does not know");
    if (errnum != ENOENT || n < sizeof *head || p[EI_CLASS] != ELFCLASS64)
        return;
    for (unsigned i = 0; i < head->e_phnum; i++) {
        Elf64_Phdr part;

        if (head->e_phoff > n || (i + 1) * sizeof part > n - head->e_phoff)
            return;
        memcpy(&part, p + head->e_phoff + i * sizeof part, sizeof part);
        if (part.p_type != PT_INTERP || part.p_offset > n ||
            part.p_filesz > n - part.p_offset || part.p_filesz == 0)
            continue;
        (void)buf_append_str(out, "it needs the loader ");
        put_quoted(out, p + part.p_offset, part.p_filesz - 1);
        (void)buf_append_str(out, ", which does not exist on this node: it was built "
                                  "for another system");
        return;
    }
}

static void explain_file(struct buf *out, const uint8_t *p, size_t n, int errnum)
{
    if (n >= 2 && p[0] == '#' && p[1] == '!')
        explain_script(out, span_of(p, n), errnum);
    else if (n >= SELFMAG && memcmp(p, ELFMAG, SELFMAG) == 0)
        explain_elf(out, p, n, errnum);
    else if (errnum == ENOEXEC && n == 0)
        (void)buf_append_str(out, "it is empty");
    else if (errnum == ENOEXEC)
        (void)buf_append_str(out, "it is not a program, and its first line names no "
                                  "interpreter: a script begins with '#!/bin/sh', "
                                  "say");
}

void refusal_explain(struct buf *out, const char *program, const char *search,
                     int errnum)
{
    union {
        char text[HEAD];
        uint8_t bytes[HEAD];
        Elf64_Ehdr aligned;
    } head;
    char path[4096];
    struct stat st;

    if (!refusal_find(program, search, path, sizeof path)) {
        if (errnum == ENOENT)
            (void)buf_append_str(
                out, strchr(program, '/')
                         ? "there is no such file on this node"
                         : "it is not in any directory of PATH on this node");
        return;
    }
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        (void)buf_append_str(out, "it is a directory");
        return;
    }
    if (errnum == EACCES && access(path, X_OK) < 0) {
        (void)buf_append_str(out, "it may not be executed: use chmod +x, or a file "
                                  "system that is not mounted with noexec");
        return;
    }
    const ssize_t n = file_read(path, head.text, sizeof head.text);
    if (n >= 0)
        explain_file(out, head.bytes, (size_t)n, errnum);
}
