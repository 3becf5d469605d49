/** Moves of sandboxes from a host to others, as `rlp host show` and `rlp host drain --move` print them. */
import type { HostMove } from '@releap/contract';
import type { Operator } from '../operator.ts';
import { table } from '../output/table.ts';

export async function readMoves({ api }: Operator, id: string): Promise<HostMove[]> {
  return (await api.listHostMoves({ params: { id } })).moves;
}

export function movesTable(moves: readonly HostMove[]): string {
  return table(
    ['SANDBOX', 'MOVE', 'TO', 'PAUSE', 'REASON'],
    moves.map((move) => [
      move.vm_id,
      move.status,
      move.target ?? '-',
      move.pause_ms === null ? '-' : `${(move.pause_ms / 1000).toFixed(1)}s`,
      move.error ?? '-',
    ]),
  );
}
