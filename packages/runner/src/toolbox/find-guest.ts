import type { GuestClient } from '../guest/index.ts';

/** The agent of a sandbox that runs here. @throws ToolboxError when there is none */
export type FindGuest = (vmId: string) => Promise<GuestClient>;
