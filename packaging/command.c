/* command.c - the muster command of a bundle: all of it is in libmuster.so beside it.
 */
#include "muster/error.h"

MUSTER_API int muster_main(int argc, char **argv);

int main(int argc, char **argv)
{
    return muster_main(argc, argv);
}
