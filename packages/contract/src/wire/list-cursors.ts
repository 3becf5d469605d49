/** The cursors of the lists that are paged by their keys (`KeyCursor` of rules/cursor.ts). */
import { cursorKind } from './resource.ts';

export const LIST_CURSORS = {
  volumes: cursorKind(17),
  objectStores: cursorKind(18),
  secrets: cursorKind(19),
  registries: cursorKind(20),
  endpoints: cursorKind(21),
  schedules: cursorKind(22),
  apiKeys: cursorKind(23),
  members: cursorKind(24),
  orgInvitations: cursorKind(25),
  myInvitations: cursorKind(26),
  organizations: cursorKind(27),
  projects: cursorKind(28),
  hosts: cursorKind(29),
  ledger: cursorKind(30),
  grants: cursorKind(31),
  operatorAudit: cursorKind(32),
  invocations: cursorKind(33),
} as const;
