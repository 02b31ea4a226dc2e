"""1x1 convolutions as matrix products that take batch norm's memory passes along, in Triton.

Images [N, H, W, C] in memory order are matrices [N * H * W, C]. All shapes are constants of a compiled kernel. Three
kernels stand here:

- `multiply` computes y = f(x) w. f is the identity, or max(scale x + bias, 0) of the batch norm before. It also returns
  the moments of y.
- `data_gradient` computes the gradient of x, where x is the result of a residual sum's ReLU. It returns the two sums
  that the gradient of the batch norm before needs.
- `weight_gradient` computes the gradient of w for such an x.

Both gradients mask g by the ReLU after y, and form batch norm's own gradient a g + b y + c while they read g and y.
Each program walks over a fixed list of tiles and writes its sums to a place of its own. Plain sums join these in a
fixed order. So runs repeat to the bit.
"""

# pyright: basic, reportMissingImports=false
# Triton compiles these functions. Their arguments are tensors of its language, which have no annotations.
import triton
import triton.language as tl


@triton.jit
def multiply(
    x,
    weight,
    scale,
    bias,
    shift,
    y,
    means,
    squares,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    WEIGHT_INNER: tl.constexpr,
    WEIGHT_OUTER: tl.constexpr,
    APPLY: tl.constexpr,
    PRECISION: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Write y [ROWS, OUTER] = f(x) w and each program's moments of y.

    x is [ROWS, INNER] and w is [INNER, OUTER] with the strides WEIGHT_INNER and WEIGHT_OUTER. `means` and `squares` are
    [PROGRAMS // column blocks, OUTER]: the mean over the program's rows, and the sum of squared deviations from it.
    `shift` [OUTER] is a rough mean, so that sums of squares do not cancel. GROUP is 8 times the number of warps. So a
    thread adds up its own rows, and threads exchange sums only at the end.
    """
    column_blocks: tl.constexpr = (OUTER + BLOCK_OUTER - 1) // BLOCK_OUTER
    row_blocks: tl.constexpr = (ROWS + BLOCK_ROWS - 1) // BLOCK_ROWS
    steps: tl.constexpr = (INNER + BLOCK_INNER - 1) // BLOCK_INNER
    walkers: tl.constexpr = PROGRAMS // column_blocks

    program = tl.program_id(0)
    walker = program // column_blocks
    columns = program % column_blocks * BLOCK_OUTER + tl.arange(0, BLOCK_OUTER)
    total = tl.zeros([GROUP, BLOCK_OUTER], tl.float32)
    total_squares = tl.zeros([GROUP, BLOCK_OUTER], tl.float32)
    if steps == 1:
        inner = tl.arange(0, BLOCK_INNER)
        w = _tile_of_weight(weight, inner, columns, INNER, OUTER, WEIGHT_INNER, WEIGHT_OUTER)
        for block in tl.range(walker, row_blocks, walkers, num_stages=STAGES):
            rows = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
            a = _activated_tile(x, scale, bias, rows, inner, ROWS, INNER, APPLY, BLOCK_ROWS, BLOCK_INNER)
            product = tl.dot(a, w, input_precision=PRECISION)
            total, total_squares = _store_with_moments(
                product, y, rows, columns, shift, total, total_squares, ROWS, OUTER,
                BLOCK_ROWS, BLOCK_OUTER, GROUP,
            )  # fmt: skip
    else:
        blocks = (row_blocks - walker + walkers - 1) // walkers
        block = walker - walkers
        step = steps - 1
        product = tl.zeros([BLOCK_ROWS, BLOCK_OUTER], tl.float32)
        for _ in tl.range(0, blocks * steps, num_stages=STAGES):
            step = tl.where(step == steps - 1, 0, step + 1)
            block = tl.where(step == 0, block + walkers, block)
            rows = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
            inner = step * BLOCK_INNER + tl.arange(0, BLOCK_INNER)
            w = _tile_of_weight(weight, inner, columns, INNER, OUTER, WEIGHT_INNER, WEIGHT_OUTER)
            a = _activated_tile(x, scale, bias, rows, inner, ROWS, INNER, APPLY, BLOCK_ROWS, BLOCK_INNER)
            product = tl.dot(a, w, product, input_precision=PRECISION)
            if step == steps - 1:
                total, total_squares = _store_with_moments(
                    product, y, rows, columns, shift, total, total_squares, ROWS, OUTER,
                    BLOCK_ROWS, BLOCK_OUTER, GROUP,
                )  # fmt: skip
                product = tl.zeros([BLOCK_ROWS, BLOCK_OUTER], tl.float32)
    count = _rows_of_walker(walker, walkers, row_blocks, ROWS, BLOCK_ROWS).to(tl.float32)
    part = tl.sum(total, 0)
    mean = part / count
    places = walker * OUTER + columns
    tl.store(means + places, _vector(shift, columns, OUTER, BLOCK_OUTER) + mean, mask=columns < OUTER)
    tl.store(squares + places, tl.maximum(tl.sum(total_squares, 0) - part * mean, 0.0), mask=columns < OUTER)


@triton.jit
def data_gradient(
    gradient,
    y,
    factors,
    weight,
    x,
    center,
    skip,
    source,
    result,
    sums,
    products,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    WEIGHT_INNER: tl.constexpr,
    WEIGHT_OUTER: tl.constexpr,
    PRECISION: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Write result [ROWS, INNER]: v = d w^T + skip, zero where x <= 0, and its sums for the batch norm before.

    d = a g + b y + c, with g masked by the ReLU after y. `factors` [5, OUTER] holds a, b, c, and that ReLU's scale and
    bias. `sums` adds v over each program's rows, and `products` adds v (source - center).
    """
    column_blocks: tl.constexpr = (INNER + BLOCK_INNER - 1) // BLOCK_INNER
    row_blocks: tl.constexpr = (ROWS + BLOCK_ROWS - 1) // BLOCK_ROWS
    steps: tl.constexpr = (OUTER + BLOCK_OUTER - 1) // BLOCK_OUTER
    walkers: tl.constexpr = PROGRAMS // column_blocks

    program = tl.program_id(0)
    walker = program // column_blocks
    columns = program % column_blocks * BLOCK_INNER + tl.arange(0, BLOCK_INNER)
    total = tl.zeros([GROUP, BLOCK_INNER], tl.float32)
    total_products = tl.zeros([GROUP, BLOCK_INNER], tl.float32)
    blocks = (row_blocks - walker + walkers - 1) // walkers
    block = walker - walkers
    step = steps - 1
    product = tl.zeros([BLOCK_ROWS, BLOCK_INNER], tl.float32)
    for _ in tl.range(0, blocks * steps, num_stages=STAGES):
        step = tl.where(step == steps - 1, 0, step + 1)
        block = tl.where(step == 0, block + walkers, block)
        rows = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        outer = step * BLOCK_OUTER + tl.arange(0, BLOCK_OUTER)
        w = _tile_of_weight(weight, outer, columns, OUTER, INNER, WEIGHT_OUTER, WEIGHT_INNER)
        d = _gradient_tile(gradient, y, factors, rows, outer, ROWS, OUTER, BLOCK_ROWS, BLOCK_OUTER)
        product = tl.dot(d, w, product, input_precision=PRECISION)
        # Triton would load what this branch reads far ahead, through shared memory that the product needs.
        if step == steps - 1:
            total, total_products = _store_masked(
                product, x, center, skip, source, result, rows, columns, total, total_products,
                ROWS, INNER, BLOCK_ROWS, BLOCK_INNER, GROUP,
            )  # fmt: skip
            product = tl.zeros([BLOCK_ROWS, BLOCK_INNER], tl.float32)
    places = walker * INNER + columns
    tl.store(sums + places, tl.sum(total, 0), mask=columns < INNER)
    tl.store(products + places, tl.sum(total_products, 0), mask=columns < INNER)


@triton.jit
def weight_gradient(
    gradient,
    y,
    factors,
    x,
    parts,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    PRECISION: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Write parts [SPLITS, INNER, OUTER]. Their sum over SPLITS is x^T d, the gradient of w. d is `data_gradient`'s."""
    outer_blocks: tl.constexpr = (OUTER + BLOCK_OUTER - 1) // BLOCK_OUTER
    inner_blocks: tl.constexpr = (INNER + BLOCK_INNER - 1) // BLOCK_INNER
    row_blocks: tl.constexpr = (ROWS + BLOCK_ROWS - 1) // BLOCK_ROWS

    program = tl.program_id(0)
    split = program // (outer_blocks * inner_blocks)
    outer = program % outer_blocks * BLOCK_OUTER + tl.arange(0, BLOCK_OUTER)
    inner = program // outer_blocks % inner_blocks * BLOCK_INNER + tl.arange(0, BLOCK_INNER)
    product = tl.zeros([BLOCK_INNER, BLOCK_OUTER], tl.float32)
    for block in tl.range(split, row_blocks, SPLITS, num_stages=STAGES):
        rows = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        a = _load_tile(x, rows, inner, ROWS, INNER, BLOCK_ROWS, BLOCK_INNER)
        d = _gradient_tile(gradient, y, factors, rows, outer, ROWS, OUTER, BLOCK_ROWS, BLOCK_OUTER)
        product = tl.dot(tl.trans(a), d, product, input_precision=PRECISION)
    places = split * INNER * OUTER + inner[:, None] * OUTER + outer[None, :]
    tl.store(parts + places, product, mask=(inner < INNER)[:, None] & (outer < OUTER)[None, :])


@triton.jit
def _tile_of_weight(
    weight,
    inner,
    outer,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    INNER_STRIDE: tl.constexpr,
    OUTER_STRIDE: tl.constexpr,
):
    places = inner[:, None] * INNER_STRIDE + outer[None, :] * OUTER_STRIDE
    return tl.load(weight + places, mask=(inner < INNER)[:, None] & (outer < OUTER)[None, :], other=0.0)


@triton.jit
def _rows_of_walker(
    walker, walkers: tl.constexpr, row_blocks: tl.constexpr, ROWS: tl.constexpr, BLOCK_ROWS: tl.constexpr
):
    """Return the number of rows in a walker's tiles. The last tile may be partial."""
    whole = (row_blocks - walker + walkers - 1) // walkers * BLOCK_ROWS
    return tl.where((row_blocks - 1) % walkers == walker, whole - (row_blocks * BLOCK_ROWS - ROWS), whole)


@triton.jit
def _load_tile(
    pointer,
    rows,
    columns,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    places = (rows * WIDTH)[:, None] + columns[None, :]
    if ROWS % BLOCK_ROWS == 0 and WIDTH % BLOCK == 0:
        return tl.load(pointer + places)
    else:
        return tl.load(pointer + places, mask=(rows < ROWS)[:, None] & (columns < WIDTH)[None, :], other=0.0)


@triton.jit
def _vector(pointer, columns, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    if WIDTH % BLOCK == 0:
        return tl.load(pointer + columns)
    else:
        return tl.load(pointer + columns, mask=columns < WIDTH, other=0.0)


@triton.jit
def _activated_tile(
    x,
    scale,
    bias,
    rows,
    inner,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    APPLY: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return f(x), rounded to x's dtype. Beyond the end only the other factor is zero."""
    a = _load_tile(x, rows, inner, ROWS, INNER, BLOCK_ROWS, BLOCK)
    if APPLY:
        wide = (
            a.to(tl.float32) * _vector(scale, inner, INNER, BLOCK)[None, :]
            + _vector(bias, inner, INNER, BLOCK)[None, :]
        )
        a = tl.maximum(wide, 0.0).to(a.dtype)
    return a


@triton.jit
def _gradient_tile(
    gradient,
    y,
    factors,
    rows,
    outer,
    ROWS: tl.constexpr,
    OUTER: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return a g + b y + c, rounded to g's dtype, with zeros beyond the last channel. Beyond the last row it is c."""
    g = _load_tile(gradient, rows, outer, ROWS, OUTER, BLOCK_ROWS, BLOCK)
    wide = _load_tile(y, rows, outer, ROWS, OUTER, BLOCK_ROWS, BLOCK).to(tl.float32)
    switch = wide * _vector(factors + 3 * OUTER, outer, OUTER, BLOCK)[None, :]
    switch += _vector(factors + 4 * OUTER, outer, OUTER, BLOCK)[None, :]
    masked = tl.where(switch > 0, g.to(tl.float32), 0.0)
    d = (
        masked * _vector(factors, outer, OUTER, BLOCK)[None, :]
        + wide * _vector(factors + OUTER, outer, OUTER, BLOCK)[None, :]
    )
    d += _vector(factors + 2 * OUTER, outer, OUTER, BLOCK)[None, :]
    return d.to(g.dtype)


@triton.jit
def _add_rows(tile, GROUP: tl.constexpr):
    """Return sums over rows of tile [rows, columns] as [GROUP, columns].

    A tensor core's result has rows i and i + 8 of 16 in one thread, and rows 16 * warps apart. These are added here.
    """
    rows: tl.constexpr = tile.shape[0]
    width: tl.constexpr = tile.shape[1]
    halves = tl.sum(tl.reshape(tile, [rows // (2 * GROUP), GROUP // 8, 2, 8, width]), 2)
    return tl.reshape(tl.sum(halves, 0), [GROUP, width])


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def _add_rows_of_pair(first, second, GROUP: tl.constexpr):
    """Return sums over rows of two tiles, as `_add_rows` does. Row i and i + GROUP of loaded tiles are in one thread.

    Both sums in one reduction have the same threads. Else one of them would go through shared memory in each tile.
    """
    rows: tl.constexpr = first.shape[0]
    width: tl.constexpr = first.shape[1]
    shape: tl.constexpr = [rows // GROUP, GROUP, width]
    return tl.reduce((tl.reshape(first, shape), tl.reshape(second, shape)), 0, _add_pairs)


@triton.jit
def _store_with_moments(
    product,
    y,
    rows,
    columns,
    shift,
    total,
    total_squares,
    ROWS: tl.constexpr,
    OUTER: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Store a tile of y, and add its values less `shift`, and their squares."""
    stored = product.to(y.dtype.element_ty)
    places = rows[:, None] * OUTER + columns[None, :]
    if ROWS % BLOCK_ROWS == 0 and OUTER % BLOCK == 0:
        tl.store(y + places, stored)
    else:
        tl.store(y + places, stored, mask=(rows < ROWS)[:, None] & (columns < OUTER)[None, :])
    shifted = stored.to(tl.float32) - _vector(shift, columns, OUTER, BLOCK)[None, :]
    if ROWS % BLOCK_ROWS != 0:
        shifted = tl.where((rows < ROWS)[:, None], shifted, 0.0)
    return total + _add_rows(shifted, GROUP), total_squares + _add_rows(shifted * shifted, GROUP)


@triton.jit
def _store_masked(
    product,
    x,
    center,
    skip,
    source,
    result,
    rows,
    columns,
    total,
    total_products,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Store a tile of a data gradient after its sum with `skip` and its mask, and add up its sums."""
    value = product + _load_tile(skip, rows, columns, ROWS, INNER, BLOCK_ROWS, BLOCK).to(tl.float32)
    switch = _load_tile(x, rows, columns, ROWS, INNER, BLOCK_ROWS, BLOCK).to(tl.float32)  # 0 beyond the last row
    value = tl.where(switch > 0, value, 0.0)
    of_source = _load_tile(source, rows, columns, ROWS, INNER, BLOCK_ROWS, BLOCK).to(tl.float32)
    stored = value.to(result.dtype.element_ty)
    places = (rows * INNER)[:, None] + columns[None, :]
    if ROWS % BLOCK_ROWS == 0 and INNER % BLOCK == 0:
        tl.store(result + places, stored)
    else:
        tl.store(result + places, stored, mask=(rows < ROWS)[:, None] & (columns < INNER)[None, :])
    wide = stored.to(tl.float32)
    far = wide * (of_source - _vector(center, columns, INNER, BLOCK)[None, :])
    sums, products = _add_rows_of_pair(wide, far, GROUP)
    return total + sums, total_products + products
