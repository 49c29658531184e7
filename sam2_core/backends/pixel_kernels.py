"""Frames into what networks take, on the device: one upload of a frame's bytes serves all.

CUDA C++, compiled by NVRTC for the device at hand; tests compile it for the host.
"""

SOURCE = r"""
// A part of a frame: where the frame's bytes are (H, W, 3), its width in pixels, and the part.
struct View {
    const unsigned char* pixels;
    int width, left, top, right, bottom, height;
};

// The taps of one output cell in antialiased bilinear resizing, as PyTorch places and weighs them.
struct Taps {
    int first, count;
    float centre, inverse_scale, total;
};

__device__ inline float weight(const Taps& taps, int index) {
    float away = fabsf((index + taps.first - taps.centre + 0.5f) * taps.inverse_scale);
    return away < 1.0f ? 1.0f - away : 0.0f;
}

__device__ inline Taps taps_of(int cell, int from, int to) {
    float scale = (float)from / to;
    float support = scale >= 1.0f ? scale : 1.0f;
    Taps taps;
    taps.centre = scale * (cell + 0.5f);
    taps.inverse_scale = scale >= 1.0f ? 1.0f / scale : 1.0f;
    int first = (int)(taps.centre - support + 0.5f);
    int last = (int)(taps.centre + support + 0.5f);
    taps.first = first > 0 ? first : 0;
    taps.count = (last < from ? last : from) - taps.first;
    taps.total = 0.0f;
    for (int i = 0; i < taps.count; ++i) taps.total += weight(taps, i);
    return taps;
}

// Views resized to squares, antialiased bilinear, float planes (V, 3, size, size), not rounded.
extern "C" __global__ void squares(const View* views, float* out, int size) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= size || y >= size) return;
    View view = views[blockIdx.z];
    Taps across = taps_of(x, view.right - view.left, size);
    Taps down = taps_of(y, view.bottom - view.top, size);
    float sum[3] = {0.0f, 0.0f, 0.0f};
    for (int j = 0; j < down.count; ++j) {
        const unsigned char* row =
            view.pixels
            + ((long long)(view.top + down.first + j) * view.width + view.left + across.first) * 3;
        float line[3] = {0.0f, 0.0f, 0.0f};
        for (int i = 0; i < across.count; ++i) {
            float share = weight(across, i);
            line[0] += share * row[3 * i];
            line[1] += share * row[3 * i + 1];
            line[2] += share * row[3 * i + 2];
        }
        float share = weight(down, j);
        for (int c = 0; c < 3; ++c) sum[c] += share * line[c];
    }
    float total = across.total * down.total;
    float* cell = out + ((long long)blockIdx.z * 3 * size + y) * size + x;
    for (int c = 0; c < 3; ++c) cell[(long long)c * size * size] = sum[c] / total;
}

// Where a cell lies between two source pixels, in 2048ths, as OpenCV's INTER_LINEAR has it.
__device__ inline void between(int cell, int from, int to, int* first, int* share) {
    float place = (float)((cell + 0.5) * ((double)from / to) - 0.5);
    int low = (int)floorf(place);
    float rest = place - low;
    if (low < 0) { low = 0; rest = 0.0f; }
    if (low >= from - 1) { low = from - 1; rest = 0.0f; }
    *first = low;
    *share = (int)rintf(rest * 2048.0f);
}

// Whole frames scaled into a place in (V, 3, height, width) BGR, whole numbers of 0 to 255, grey
// 114 around. `places` are left, top, width and height for each frame.
extern "C" __global__ void letterboxes(
    const View* views, const int* places, float* out, int width, int height
) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    View view = views[blockIdx.z];
    const int* place = places + 4 * blockIdx.z;
    int to_x = place[2], to_y = place[3], in_x = x - place[0], in_y = y - place[1];
    int value[3] = {114, 114, 114};
    if (in_x >= 0 && in_y >= 0 && in_x < to_x && in_y < to_y) {
        int left, top, share_x, share_y;
        between(in_x, view.width, to_x, &left, &share_x);
        between(in_y, view.height, to_y, &top, &share_y);
        int right = share_x ? left + 1 : left, bottom = share_y ? top + 1 : top;
        const unsigned char* upper = view.pixels + (long long)top * view.width * 3;
        const unsigned char* lower = view.pixels + (long long)bottom * view.width * 3;
        for (int c = 0; c < 3; ++c) {
            int high = upper[3 * left + c] * (2048 - share_x) + upper[3 * right + c] * share_x;
            int low = lower[3 * left + c] * (2048 - share_x) + lower[3 * right + c] * share_x;
            high = ((2048 - share_y) * (high >> 4)) >> 16;
            low = (share_y * (low >> 4)) >> 16;
            value[c] = (high + low + 2) >> 2;
        }
    }
    long long plane = (long long)width * height;
    long long cell = blockIdx.z * 3 * plane + (long long)y * width + x;
    for (int c = 0; c < 3; ++c) out[cell + c * plane] = (float)value[2 - c];
}

// The rows of a detector that may be boxes, in any order: with their number in front, at most
// `most` of each image; `counts` are all that there are. Columns are x, y, w, h, objectness and
// class scores.
extern "C" __global__ void likely(
    const float* rows, int cells, int columns, float least, int most, int* counts, float* picked
) {
    int cell = blockIdx.x * blockDim.x + threadIdx.x;
    if (cell >= cells) return;
    const float* row = rows + ((long long)blockIdx.z * cells + cell) * columns;
    float best = row[5];
    for (int c = 6; c < columns; ++c) best = fmaxf(best, row[c]);
    if (!(best * row[4] >= least)) return;
    int at = atomicAdd(counts + blockIdx.z, 1);
    if (at >= most) return;
    float* to = picked + ((long long)blockIdx.z * most + at) * (columns + 1);
    to[0] = (float)cell;
    for (int c = 0; c < columns; ++c) to[c + 1] = row[c];
}
"""
