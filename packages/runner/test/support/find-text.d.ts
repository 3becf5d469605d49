/** The files below a folder that hold this text, whatever else they hold. Files that vanish meanwhile are none. */
export declare function filesWith(folder: string, text: string): string[];
