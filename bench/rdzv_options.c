/* rdzv_options.c - the command line of muster-bench rdzv; rdzv.c explains it. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "rdzv.h"

static const char *beside_us(char *path, size_t size, const char *name)
{
    char self[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;

    self[MAX_OF(n, 0)] = '\0';
    slash = strrchr(self, '/');
    if (!slash)
        return name;
    (void)snprintf(path, size, "%.*s/%s", (int)(slash - self), self, name);
    return path;
}

bool rdzv_parse(int argc, char **argv, struct rdzv_options *o)
{
    static const struct option longs[] = {
        { "nodes", 1, NULL, 'n' },     { "more", 1, NULL, 'm' },
        { "processes", 1, NULL, 'p' }, { "rounds", 1, NULL, 'r' },
        { "lose", 0, NULL, 'l' },      { "wait", 0, NULL, 'w' },
        { "beat", 1, NULL, 'b' },      { "endpoint", 1, NULL, 'e' },
        { "muster", 1, NULL, 'x' },    { "torch", 0, NULL, 't' },
        { "python", 1, NULL, 'y' },    { 0 }
    };
    static char muster[4096], python[4096];
    char *colon;
    int c;

    *o = (struct rdzv_options){
        .nodes = 128,
        .processes = 2,
        .rounds = 1,
        .muster = beside_us(muster, sizeof muster, "muster"),
        .python = beside_us(python, sizeof python, "venv/bin/python"),
    };
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case 'n':
            o->nodes = strtol(optarg, NULL, 10);
            break;
        case 'm':
            o->more = strtol(optarg, NULL, 10);
            break;
        case 'p':
            o->processes = strtol(optarg, NULL, 10);
            break;
        case 'r':
            o->rounds = strtol(optarg, NULL, 10);
            break;
        case 'l':
            o->lose = true;
            break;
        case 'w':
            o->wait = true;
            break;
        case 'b':
            o->beat_s = strtol(optarg, NULL, 10);
            break;
        case 'x':
            o->muster = optarg;
            break;
        case 't':
            o->torch = true;
            break;
        case 'y':
            o->python = optarg;
            break;
        case 'e':
            colon = strrchr(optarg, ':');
            if (!colon || (size_t)(colon - optarg) >= sizeof o->host)
                return false;
            (void)snprintf(o->host, sizeof o->host, "%.*s", (int)(colon - optarg),
                           optarg);
            o->port = (uint16_t)strtol(colon + 1, NULL, 10);
            break;
        default:
            return false;
        }
    }
    return o->nodes > 0 && o->more >= 0 && o->rounds > 0 && o->processes > 0 &&
           o->processes <= RDZV_MAX_PROCESSES && o->processes <= o->nodes;
}
