/* main.c - the muster command: finds the subcommand and hands over. */
#include <stdio.h>
#include <string.h>

#include "muster/error.h"

static const char usage[] = "usage: muster --version\n";

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("muster %s\n", muster_version());
        return 0;
    }
    fputs(usage, stderr);
    return 2;
}
