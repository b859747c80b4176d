#include "source.hpp"
#include <cctype>
#include <regex>
#include <set>
#include <vector>

namespace nvrtc {

struct Kernel {
    std::string name, threads;
};

// The text inside the bracket that opens at `open`, and the place behind its end.
static std::string bracket(const std::string& text, size_t open, size_t& behind) {
    int depth = 0;
    for (size_t at = open; at < text.size(); ++at) {
        if (text[at] == '(') ++depth;
        if (text[at] == ')' && --depth == 0) {
            behind = at + 1;
            return text.substr(open + 1, at - open - 1);
        }
    }
    behind = text.size();
    return "";
}

static std::string first_argument(const std::string& arguments) {
    int depth = 0;
    for (size_t at = 0; at < arguments.size(); ++at) {
        if (arguments[at] == '(') ++depth;
        if (arguments[at] == ')') --depth;
        if (arguments[at] == ',' && depth == 0) return arguments.substr(0, at);
    }
    return arguments;
}

// Comments and preprocessor lines as spaces: kernels are looked for in the rest.
static std::string code_only(std::string text) {
    for (size_t at = 0; at < text.size(); ++at) {
        size_t end = at;
        if (text.compare(at, 2, "//") == 0) end = text.find('\n', at);
        else if (text.compare(at, 2, "/*") == 0) end = text.find("*/", at + 2);
        else if (text[at] == '#') {
            for (end = text.find('\n', at); end != std::string::npos && text[end - 1] == '\\';) end = text.find('\n', end + 1);
        }
        for (; at < std::min(end, text.size()); ++at)
            if (text[at] != '\n') text[at] = ' ';
    }
    return text;
}

// Entries by `KERNEL(threads) name(` and by `extern "C" __global__ ... name(`.
static std::vector<Kernel> kernels_of(const std::string& source) {
    const std::string text = code_only(source);
    static const std::regex start(R"((\bKERNEL\s*\()|(\b__global__\b))"), bounds(R"(^[\s\w]*\b__launch_bounds__\s*\()"),
        cluster(R"(^\s*__cluster_dims__\s*\()"), name(R"(^[\s\w]*?\b(\w+)\s*\()");
    std::vector<Kernel> found;
    std::set<std::string> seen;
    for (std::sregex_iterator match(text.begin(), text.end(), start), none; match != none; ++match) {
        Kernel kernel{"", "0"};
        size_t at = size_t(match->position()) + size_t(match->length());
        std::smatch part;
        if ((*match)[1].matched) {
            kernel.threads = first_argument(bracket(text, at - 1, at));
        } else {
            for (const std::regex* skipped : {&bounds, &cluster}) {
                const std::string rest = text.substr(at, 400);
                if (!std::regex_search(rest, part, *skipped)) continue;
                const std::string inside = bracket(text, at + size_t(part.length()) - 1, at);
                if (skipped == &bounds) kernel.threads = first_argument(inside);
            }
        }
        const std::string rest = text.substr(at, 400);
        if (!std::regex_search(rest, part, name)) continue;
        kernel.name = part[1];
        if (seen.insert(kernel.name).second) found.push_back(kernel);
    }
    return found;
}

// What a string literal stands for; adjacent ones are one.
static std::string unquoted(const std::string& literals) {
    std::string text;
    bool inside = false;
    for (size_t at = 0; at < literals.size(); ++at) {
        if (literals[at] == '"') inside = !inside;
        else if (inside && literals[at] == '\\' && at + 1 < literals.size()) text += literals[++at] == 'n' || literals[at] == 't' ? ' ' : literals[at];
        else if (inside) text += literals[at];
    }
    return text;
}

// The sections of an `asm` statement: its template, and the expressions of its operands in their order.
struct Asm {
    std::string text;
    std::vector<std::string> operands;
};

static Asm sections(const std::string& inside) {
    Asm found;
    size_t at = 0;
    const auto literal = [&] {
        const size_t start = at;
        bool open = false;
        for (; at < inside.size() && (open || inside[at] != ':') && (open || inside[at] != '('); ++at)
            if (inside[at] == '"' && (at == 0 || inside[at - 1] != '\\')) open = !open;
        return inside.substr(start, at - start);
    };
    found.text = unquoted(literal());
    while (at < inside.size()) {
        literal();  // a constraint, or the colon between sections
        if (at < inside.size() && inside[at] == '(') found.operands.push_back("(" + bracket(inside, at, at) + ")");
        else ++at;
    }
    return found;
}

// `name.of.it {%0, %1}, [%2], 16;` as a call of the function `ptx.hpp` has for it.
static std::string call_of(const Asm& statement) {
    static const std::regex instruction(R"(^\s*([\w.:]+)\s*([^;]*);\s*$)"), operand(R"(%(\d+)|\b(\d+)\b)");
    std::smatch part;
    if (!std::regex_match(statement.text, part, instruction)) return "ptx_of_several_instructions()";
    const std::string operands = part[2];
    std::string name = part[1], arguments;
    for (char& letter : name)
        if (!std::isalnum((unsigned char)letter)) letter = '_';
    for (std::sregex_iterator match(operands.begin(), operands.end(), operand), none; match != none; ++match) {
        const size_t number = (*match)[1].matched ? std::stoul((*match)[1]) : 0;
        arguments += arguments.empty() ? "" : ", ";
        if (!(*match)[1].matched) arguments += (*match)[2];
        else if (number < statement.operands.size()) arguments += statement.operands[number];
    }
    return "ptx_" + name + "(" + arguments + ")";
}

static std::string without_asm(const std::string& text) {
    static const std::regex start(R"(\basm\s*(?:volatile)?\s*\()");
    std::string out;
    size_t copied = 0;
    for (std::smatch match; std::regex_search(text.begin() + long(copied), text.end(), match, start);) {
        const size_t at = copied + size_t(match.position());
        size_t behind;
        const std::string inside = bracket(text, at + size_t(match.length()) - 1, behind);
        out += text.substr(copied, at - copied) + call_of(sections(inside));
        copied = behind;
    }
    return out + text.substr(copied);
}

// A host compiler is fast and its libraries are kept, so it compiles all kernels of a source at once.
std::string with_all_kernels(std::string text) {
    const std::string other = "OTHER_KERNEL(";
    for (size_t at = 0; (at = text.find(other, at)) != std::string::npos;) text.replace(at, other.size(), "KERNEL(");
    return text;
}

std::string host_source(const std::string& cuda_source) {
    // Linux has these types as `long`, CUDA's generator as `long long`.
    static const std::regex long_types(R"(typedef (unsigned|signed) long long int u?int64_t;)");
    static const std::regex dynamic(R"(extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?(\w+)\s+(\w+)\s*\[\s*\]\s*;)");
    std::string text = std::regex_replace(cuda_source, long_types, "");
    text = std::regex_replace(text, dynamic, "$1* const $2 = reinterpret_cast<$1*>(emulator::dynamic_memory);");
    text = without_asm(text);
    text = "#line 1 \"kernel.cu\"\n" + text + "\nEMULATED_MODULE(";
    for (const Kernel& kernel : kernels_of(cuda_source)) text += "EMULATED_KERNEL(" + kernel.name + ", (" + kernel.threads + "))";
    return text + ")\n";
}

}  // namespace nvrtc
