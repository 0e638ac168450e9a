/* launch_command.c - runs a command as N workers of one group, as `muster run` would:
 *
 *     example_launch_command 4 sh -c 'echo $RANK of $WORLD_SIZE'
 *
 * Exit code 0 if all of them succeed, 1 with torch's report if one fails. */
#include <muster/launch.h>

#include <stdio.h>

int main(int argc, char **argv)
{
    struct muster_launch_config *config;
    struct muster_launch_result *result = NULL;
    struct muster_error err;

    if (argc < 3) {
        fprintf(stderr, "usage: %s <workers> <program> [arguments]\n", argv[0]);
        return 2;
    }
    if (muster_launch_config_new(&config, &err) < 0 ||
        muster_launch_config_set(config, "standalone", NULL, &err) < 0 ||
        muster_launch_config_set(config, "nproc-per-node", argv[1], &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const struct muster_entry entry = { .argv = (const char *const *)(argv + 2) };
    const int rc = muster_launch(config, &entry, &result, &err);

    if (rc < 0)
        fprintf(stderr, "%s: %s\n%s", muster_code_name(rc), err.text,
                result ? muster_launch_report(result) : "");
    muster_launch_result_free(result);
    muster_launch_config_free(config);
    return rc < 0 ? 1 : 0;
}
