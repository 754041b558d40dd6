/* A stranger's program: succeeds if the headers it was compiled with and the library it runs with are the same version. */
#include <flashmask/flashmask.h>
#include <flashmask/masks.h>

#include <stdio.h>
#include <string.h>

int main(void) {
    fm_mask_free(NULL);
    printf("flashmask %d, status %s\n", fm_version(), fm_status_name(FM_OK));
    return fm_version() == FM_VERSION && strcmp(fm_status_name(FM_OK), "FM_OK") == 0 ? 0 : 1;
}
