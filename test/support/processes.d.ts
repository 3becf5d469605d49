export type Role = 'control' | 'runner' | 'gateway' | 'postgres';
/** What /proc says of one process; undefined when it is gone, or dead and only not yet reaped. */
export declare function processStatus(pid: number): Promise<Map<string, string> | undefined>;
/** Pids of the parts of the service with this home, those that live. */
export declare function partPids(home: string): Promise<Partial<Record<Role, number>>>;
/** The VMM of a sandbox, by its bare UUID; undefined when it has none that lives. */
export declare function vmmPid(home: string, uuid: string): Promise<number | undefined>;
