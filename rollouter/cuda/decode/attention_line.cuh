#pragma once

#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/paged_attention.h"

// The line of tiles that a step's attention is cut from (paged_attention.h): row after row, of a row head after head, of
// a head tile after tile.
//
// Rows that attend jointly are the tokens of one sequence whose positions differ in the last digit alone, by base
// `window`. The last of them that there is stands for all of them in the line, the others have no tiles.
namespace syncopate::rollouter {

constexpr int kTileTokens = 64;

__device__ __forceinline__ int MakeTiles(int length) { return (length + kTileTokens - 1) / kTileTokens; }

// Whether `row` is the token after the one of the row before it, and in its window.
__device__ __forceinline__ bool JoinsRowBefore(const PagedRows& rows, int row, int window) {
  const int length = rows.lengths[row];
  return (length - 1) % window != 0 && rows.lengths[row - 1] == length - 1 && rows.slots[row - 1] == rows.slots[row];
}

// Tiles of a head of the row in the line.
__device__ __forceinline__ int TilesOfRow(const PagedRows& rows, int row, int window) {
  const int length = rows.lengths[row];
  const bool stands_back = window > 1 && length > 0 && row + 1 < rows.rows && JoinsRowBefore(rows, row + 1, window);
  return stands_back ? 0 : MakeTiles(length);
}

// How many blocks get a piece: none without a tile, since a row is merged when all pieces that it lies in have arrived,
// and an empty one never does.
__device__ __forceinline__ long UsedPieces(long blocks, long tiles) { return blocks < tiles ? blocks : tiles; }
// Piece c of the line of `tiles` tiles: [c * tiles / pieces, (c + 1) * tiles / pieces).
__device__ __forceinline__ long PieceBegin(long piece, long tiles, long pieces) { return piece * tiles / pieces; }
// The piece that holds a tile.
__device__ __forceinline__ int GetPiece(long tile, long tiles, long pieces) {
  return static_cast<int>(((tile + 1) * pieces - 1) / tiles);
}

// A tile of the line.
struct Cursor {
  int row = 0, head = 0, tile = 0;
  int length = 0, tiles = 0, slot = 0;  // of the row

  __device__ __forceinline__ bool LastOfRow() const { return tile == tiles - 1; }
  template <int kWindow>
  __device__ __forceinline__ void NextHead(const PagedRows& rows, int kv_heads) {
    tile = 0;
    if (++head < kv_heads) return;
    head = 0;
    do {
      if (++row >= rows.rows) return;
      length = rows.lengths[row];
      slot = rows.slots[row];
      tiles = TilesOfRow(rows, row, kWindow);
    } while (tiles == 0);
  }
  template <int kWindow>
  __device__ __forceinline__ void Next(const PagedRows& rows, int kv_heads) {
    if (++tile == tiles) NextHead<kWindow>(rows, kv_heads);
  }
};

}  // namespace syncopate::rollouter
