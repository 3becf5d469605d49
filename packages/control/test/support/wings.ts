/** From the ground up; see docs/architecture.md. */
export const WINGS: readonly string[] = [
  'platform',
  'tenancy',
  'fleet',
  'storage',
  'compute',
  'edge',
  'functions',
];

/** @param place a file or a folder, relative to the source folder */
export const wingOf = (place: string): string => place.split('/', 1)[0] ?? '';

/** Whether a wing may use another one: itself, and those below it. */
export const mayUse = (wing: string, other: string): boolean =>
  WINGS.slice(0, WINGS.indexOf(wing) + 1).includes(other);
