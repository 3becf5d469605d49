/** In milliseconds. */
export interface MoveDeadlines {
  storeMs: number;
  placeMs: number;
  /** Until it runs again. */
  resumeMs: number;
  /** Between two attempts to find a host, or to start it. */
  retryMs: number;
}

export const MOVE_DEADLINES: MoveDeadlines = {
  // The memory and the disk of a large sandbox, behind others.
  storeMs: 60 * 60_000,
  placeMs: 60 * 60_000,
  resumeMs: 10 * 60_000,
  retryMs: 5_000,
};
