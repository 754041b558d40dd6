#include "attention/device_plan.h"

#include "core/memory.h"

/* More tiles a plane are refused: the two maps would pass 128 MiB a plane. */
#define MOST_TILES (INT64_C(1) << 28)

/* More rows or keys are refused: the end of their last group, and what kernels add to it, must fit 32 bits. */
#define MOST_LENGTH (INT32_MAX + INT64_C(1) - 2 * FM_PLAN_GROUP)

/* Arrays one after another, each aligned. base NULL only measures. */
typedef struct cursor {
    char *base;
    int64_t used; /* -1: passed INT64_MAX */
} cursor;

static void *take(cursor *c, int64_t count, size_t element_bytes) {
    const int64_t bytes = count < 0 ? -1 : fm_multiply(count, (int64_t)element_bytes);
    if (c->used < 0 || bytes < 0 || bytes > INT64_MAX / 4 - c->used) {
        c->used = -1;
        return NULL;
    }
    void *array = c->base != NULL ? c->base + c->used : NULL;
    c->used += fm_ceil_divide(bytes, FM_DEVICE_ALIGNMENT) * FM_DEVICE_ALIGNMENT;
    return array;
}

static fm_tile_lines lay_out_lines(cursor *c, int64_t planes, int64_t lines, int64_t tiles) {
    fm_tile_lines out = {.lines = (int32_t)lines,
                         .tiles = (int32_t)tiles,
                         .words = (int32_t)fm_ceil_divide(tiles, FM_PLAN_WORD_TILES),
                         .groups = (int32_t)fm_ceil_divide(lines, FM_PLAN_GROUP / FM_PLAN_BLOCK)};
    const int64_t groups = fm_multiply(planes, out.groups);
    out.map = take(c, fm_multiply(planes, lines * out.words), sizeof *out.map);
    out.range = take(c, groups, sizeof *out.range);
    out.count = take(c, groups, sizeof *out.count);
    out.order = take(c, groups, sizeof *out.order);
    return out;
}

static fm_device_plan lay_out(cursor *c, fm_mask_shape shape, int32_t intervals, int64_t fallback_blocks) {
    const int64_t planes = shape.batch * shape.heads;
    const int64_t rows = fm_ceil_divide(shape.rows, FM_PLAN_BLOCK), columns = fm_ceil_divide(shape.columns, FM_PLAN_BLOCK);
    const int64_t stripes = fm_ceil_divide(shape.columns, FM_STRIPE);
    fm_device_plan plan = {.batch = (int32_t)shape.batch,
                           .heads = (int32_t)shape.heads,
                           .rows = (int32_t)shape.rows,
                           .columns = (int32_t)shape.columns,
                           .intervals = (int32_t)fm_clamp(intervals, 1, FM_MAX_INTERVALS),
                           .bounds_stride = (int32_t)(stripes * FM_STRIPE),
                           .stripes = (int32_t)stripes,
                           .row_blocks = (int32_t)fm_ceil_divide(shape.rows, FM_STRIPE)};
    plan.bounds = take(c, fm_multiply(planes, plan.intervals * stripes * FM_STRIPE), sizeof *plan.bounds);
    plan.row_lines = lay_out_lines(c, planes, rows, columns);
    plan.column_lines = lay_out_lines(c, planes, columns, rows);
    if (fallback_blocks > 0) {
        plan.stripe_slot = take(c, fm_multiply(planes, stripes), sizeof *plan.stripe_slot);
        plan.block_index = take(c, fm_multiply(planes, stripes * plan.row_blocks), sizeof *plan.block_index);
        plan.blocks = take(c, fm_multiply(fallback_blocks, FM_BLOCK_WORDS), sizeof *plan.blocks);
    }
    return plan;
}

fm_status fm_device_plan_bytes(fm_mask_shape shape, int32_t intervals, int64_t fallback_blocks, size_t *bytes) {
    cursor c = {.base = NULL};
    FM_TRY(fm_mask_shape_check(shape));
    FM_CHECK(intervals >= 0 && intervals <= FM_MAX_INTERVALS, FM_ERROR_ARGUMENT, "intervals: is %d, needs 0 .. %d", intervals,
             FM_MAX_INTERVALS);
    FM_CHECK(fallback_blocks >= 0, FM_ERROR_ARGUMENT, "options.fallback_blocks: is %lld, needs >= 0", (long long)fallback_blocks);
    const int64_t rows = fm_ceil_divide(shape.rows, FM_PLAN_BLOCK), columns = fm_ceil_divide(shape.columns, FM_PLAN_BLOCK);
    FM_CHECK(rows * columns <= MOST_TILES, FM_ERROR_LIMIT,
             "plan: %lld x %lld tiles of 64 x 64 pass 2^28, the most of a device plan (1,048,576 rows and keys)", (long long)rows,
             (long long)columns);
    FM_CHECK(shape.rows <= MOST_LENGTH && shape.columns <= MOST_LENGTH, FM_ERROR_LIMIT,
             "plan: %lld rows, %lld keys; a device plan takes at most %lld of either", (long long)shape.rows,
             (long long)shape.columns, (long long)MOST_LENGTH);
    lay_out(&c, shape, intervals, fallback_blocks);
    FM_CHECK(c.used >= 0, FM_ERROR_LIMIT, "plan: its bytes for %lld x %lld planes pass 2^61", (long long)shape.batch,
             (long long)shape.heads);
    *bytes = (size_t)c.used;
    return FM_OK;
}

int64_t fm_device_plan_blocks(const fm_mask_view *mask) {
    return mask->slots == 0 || mask->block_count > 0 ? mask->block_count : 1;
}

fm_status fm_device_plan_make(fm_mask_shape shape, int32_t intervals, const fm_plan_options *o, fm_device device,
                              const fm_mask *mask, void *buffer, fm_plan **out) {
    cursor c = {.base = buffer};
    fm_window window;
    fm_plan *plan = NULL;
    FM_TRY(fm_window_make(o->causal, o->window_left, o->window_right, shape, &window));
    FM_TRY(fm_allocate("plan", 1, sizeof *plan, (void **)&plan));
    plan->shape = shape;
    plan->mask = mask != NULL ? fm_mask_retain(mask) : NULL;
    plan->window = window;
    plan->device = device;
    plan->block_m = FM_PLAN_BLOCK;
    plan->block_n = FM_PLAN_BLOCK;
    plan->on_device = lay_out(&c, shape, intervals, o->fallback_blocks);
    *out = plan;
    return FM_OK;
}

/* ---- the public calls ---- */

static fm_status check_options(const fm_plan_options *o) {
    FM_CHECK(o->size == sizeof *o, FM_ERROR_ARGUMENT, "options.size: is %zu, needs %zu (start from FM_PLAN_OPTIONS_INIT)",
             o->size, sizeof *o);
    FM_CHECK(o->backend == FM_BACKEND_AUTO || o->backend == FM_BACKEND_CUDA_SM80, FM_ERROR_ARGUMENT,
             "options.backend: is %d, a device plan needs FM_BACKEND_AUTO or _CUDA_SM80", (int)o->backend);
    FM_CHECK((o->block_m == 0 || o->block_m == FM_PLAN_BLOCK) && (o->block_n == 0 || o->block_n == FM_PLAN_BLOCK),
             FM_ERROR_ARGUMENT, "options.block_m, block_n: are %d, %d, a device plan needs %d, or 0", o->block_m, o->block_n,
             FM_PLAN_BLOCK);
    return FM_OK;
}

fm_status fm_plan_device_bytes(fm_mask_shape shape, int32_t intervals, const fm_plan_options *options, size_t *bytes) {
    const fm_plan_options defaults = FM_PLAN_OPTIONS_INIT, *o = options != NULL ? options : &defaults;
    fm_clear_error();
    FM_REQUIRE(bytes);
    FM_TRY(check_options(o));
    return fm_device_plan_bytes(shape, intervals, o->fallback_blocks, bytes);
}

/* Device, then buffer: present, large enough, aligned, on the device. */
static fm_status check_buffer(const fm_backend *backend, fm_device device, const void *buffer, size_t given, size_t needed) {
    FM_TRY(backend->check_device(device));
    FM_CHECK(given >= needed, FM_ERROR_WORKSPACE, "bytes: is %zu, the plan needs %zu", given, needed);
    FM_CHECK((uintptr_t)buffer % FM_DEVICE_ALIGNMENT == 0, FM_ERROR_ARGUMENT, "buffer: is not aligned to %d bytes",
             FM_DEVICE_ALIGNMENT);
    return needed > 0 ? backend->check_memory("buffer", buffer, device) : FM_OK;
}

/* Builds a plan that make() laid out, or frees it. */
static fm_status build(fm_plan *plan, const fm_plan_source *source, void *stream, fm_plan **out) {
    const fm_status status = fm_backend_cuda_sm80.build_plan(plan, source, stream);
    if (status != FM_OK) {
        fm_plan_free(plan);
        return status;
    }
    *out = plan;
    return FM_OK;
}

fm_status fm_plan_create_device(const fm_mask *mask, const fm_plan_options *options, fm_device device, void *buffer, size_t bytes,
                                void *stream, fm_plan **out) {
    const fm_plan_options defaults = FM_PLAN_OPTIONS_INIT, *o = options != NULL ? options : &defaults;
    size_t needed;
    fm_plan *plan;
    fm_clear_error();
    FM_REQUIRE(mask);
    FM_REQUIRE(out);
    FM_TRY(check_options(o));
    const fm_mask_view *view = &mask->view;
    FM_CHECK(fm_device_plan_blocks(view) <= o->fallback_blocks, FM_ERROR_LIMIT,
             "options.fallback_blocks: is %lld, the mask's fallback needs %lld", (long long)o->fallback_blocks,
             (long long)fm_device_plan_blocks(view));
    FM_TRY(fm_device_plan_bytes(view->shape, view->intervals, o->fallback_blocks, &needed));
    FM_TRY(check_buffer(&fm_backend_cuda_sm80, device, buffer, bytes, needed));
    FM_TRY(fm_device_plan_make(view->shape, view->intervals, o, device, mask, buffer, &plan));
    return build(plan, &(fm_plan_source){.mask = view}, stream, out);
}

static fm_status check_vectors(const fm_mask_vectors *v) {
    FM_CHECK(v->size == sizeof *v, FM_ERROR_ARGUMENT, "vectors->size: is %zu, needs %zu (start from FM_MASK_VECTORS_INIT)",
             v->size, sizeof *v);
    FM_TRY(fm_mask_shape_check(v->shape));
    const int32_t n = v->vectors;
    switch (v->format) {
    case FM_VECTORS_STARTEND:
        FM_CHECK(v->causal ? n == 1 || n == 2 : n == 2 || n == 4, FM_ERROR_ARGUMENT, "vectors->vectors: is %d, %s", n,
                 v->causal ? "causal STARTEND needs 1 or 2" : "STARTEND needs 2 or 4");
        break;
    case FM_VECTORS_FMS_FME:
    case FM_VECTORS_INTERVALS:
        FM_CHECK(n >= 2 && n <= 2 * FM_MAX_INTERVALS && n % 2 == 0, FM_ERROR_ARGUMENT,
                 "vectors->vectors: is %d, pairs need 2, 4, 6 or 8", n);
        FM_CHECK(!v->causal, FM_ERROR_ARGUMENT, "vectors->causal: belongs to STARTEND; use the plan options' causal");
        break;
    default:
        fm_fail(FM_ERROR_ARGUMENT, "vectors->format: is %d, needs FM_VECTORS_STARTEND, _FMS_FME or _INTERVALS", (int)v->format);
        return FM_ERROR_ARGUMENT;
    }
    for (int i = 0; i < 4; i++) {
        FM_CHECK(v->stride[i] >= 0, FM_ERROR_ARGUMENT, "vectors->stride[%d]: is %lld, needs >= 0", i, (long long)v->stride[i]);
    }
    FM_CHECK(v->device.kind == FM_CUDA, FM_ERROR_DEVICE,
             "vectors->device: is the CPU; make a mask of host vectors (fm_mask_from_*) and a plan by fm_plan_create_device");
    FM_CHECK((uintptr_t)v->data % sizeof *v->data == 0, FM_ERROR_ARGUMENT, "vectors->data: is not aligned to its elements");
    return FM_OK;
}

/* Masking n rows intervals leaves at most n + 1 visible ones; a causal bound or an outer interval takes one away. */
static int32_t visible_intervals(const fm_mask_vectors *v) {
    if (v->format != FM_VECTORS_STARTEND) {
        return v->vectors / 2;
    }
    return v->causal ? v->vectors : v->vectors / 2 + (v->vectors == 4);
}

fm_status fm_mask_vectors_intervals(const fm_mask_vectors *vectors, int32_t *intervals) {
    fm_clear_error();
    FM_REQUIRE(vectors);
    FM_REQUIRE(intervals);
    FM_TRY(check_vectors(vectors));
    *intervals = visible_intervals(vectors);
    return FM_OK;
}

static fm_status check_vector_memory(const fm_mask_vectors *v) {
    return v->shape.columns > 0 ? fm_backend_cuda_sm80.check_memory("vectors->data", v->data, v->device) : FM_OK;
}

fm_status fm_plan_create_from_vectors(const fm_mask_vectors *vectors, const fm_plan_options *options, void *buffer, size_t bytes,
                                      void *stream, fm_plan **out) {
    const fm_plan_options defaults = FM_PLAN_OPTIONS_INIT, *o = options != NULL ? options : &defaults;
    size_t needed;
    fm_plan *plan;
    fm_clear_error();
    FM_REQUIRE(vectors);
    FM_REQUIRE(out);
    FM_TRY(check_options(o));
    FM_TRY(check_vectors(vectors));
    FM_CHECK(o->fallback_blocks == 0, FM_ERROR_ARGUMENT, "options.fallback_blocks: is %lld, vectors have no fallback",
             (long long)o->fallback_blocks);
    const int32_t intervals = visible_intervals(vectors);
    FM_TRY(fm_device_plan_bytes(vectors->shape, intervals, 0, &needed));
    FM_TRY(check_buffer(&fm_backend_cuda_sm80, vectors->device, buffer, bytes, needed));
    FM_TRY(check_vector_memory(vectors));
    FM_TRY(fm_device_plan_make(vectors->shape, intervals, o, vectors->device, NULL, buffer, &plan));
    return build(plan, &(fm_plan_source){.vectors = vectors}, stream, out);
}

fm_status fm_plan_attach_device(fm_mask_shape shape, int32_t intervals, const fm_plan_options *options, fm_device device,
                                void *buffer, size_t bytes, fm_plan **out) {
    const fm_plan_options defaults = FM_PLAN_OPTIONS_INIT, *o = options != NULL ? options : &defaults;
    size_t needed;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(check_options(o));
    FM_TRY(fm_device_plan_bytes(shape, intervals, o->fallback_blocks, &needed));
    FM_TRY(check_buffer(&fm_backend_cuda_sm80, device, buffer, bytes, needed));
    return fm_device_plan_make(shape, intervals, o, device, NULL, buffer, out);
}

fm_status fm_plan_update_from_vectors(fm_plan *plan, const fm_mask_vectors *vectors, void *stream) {
    fm_clear_error();
    FM_REQUIRE(plan);
    FM_REQUIRE(vectors);
    FM_TRY(check_vectors(vectors));
    const fm_mask_shape a = plan->shape, b = vectors->shape;
    FM_CHECK(plan->device.kind == FM_CUDA && plan->mask == NULL, FM_ERROR_ARGUMENT,
             "plan: was not made by fm_plan_create_from_vectors");
    FM_CHECK(plan->on_device.stripe_slot == NULL, FM_ERROR_ARGUMENT,
             "plan: was attached with fallback_blocks; vectors have no fallback");
    FM_CHECK(plan->device.index == vectors->device.index, FM_ERROR_DEVICE, "vectors->device: is CUDA:%d, the plan is on CUDA:%d",
             vectors->device.index, plan->device.index);
    FM_CHECK(a.batch == b.batch && a.heads == b.heads && a.rows == b.rows && a.columns == b.columns, FM_ERROR_SHAPE,
             "vectors->shape: is [%lld, %lld, %lld, %lld], the plan's is [%lld, %lld, %lld, %lld]", (long long)b.batch,
             (long long)b.heads, (long long)b.rows, (long long)b.columns, (long long)a.batch, (long long)a.heads,
             (long long)a.rows, (long long)a.columns);
    FM_CHECK(visible_intervals(vectors) <= plan->on_device.intervals, FM_ERROR_SHAPE,
             "vectors->vectors: hold up to %d intervals a key, the plan was made for %d", visible_intervals(vectors),
             plan->on_device.intervals);
    FM_TRY(check_vector_memory(vectors));
    return fm_backend_cuda_sm80.build_plan(plan, &(fm_plan_source){.vectors = vectors}, stream);
}
